//! A platform started for the measurement: `fn up` with directories and a port of its own, gone when dropped.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::slice;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use http::Method;
use rekindle_wire::api::VersionInfo;
use tempfile::TempDir;

use crate::admin::Admin;
use crate::args::Args;
use crate::children;
use crate::client::Connection;

/// Limit to be ready: it imports the root filesystems at its first start.
const READY_LIMIT: Duration = Duration::from_secs(90);
/// Limit for the deploy, with its boot, warm-up and snapshot, seconds.
const DEPLOY_LIMIT_S: &str = "90";

/// A running platform.
pub(crate) struct Platform {
    child: Child,
    root: TempDir,
    port: u16,
    programs: Programs,
    criu: PathBuf,
    /// Variables of its environment.
    settings: Vec<(String, String)>,
}

/// The directory of `fn` and `rekindle-init`.
#[derive(Debug, Clone)]
pub(crate) struct Programs(PathBuf);

impl Platform {
    /// Starts one and waits until it is ready.
    pub(crate) async fn start(args: &Args) -> Result<Self> {
        Self::start_with(args, &[]).await
    }

    /// Starts one with these settings in its environment.
    pub(crate) async fn start_with(args: &Args, settings: &[(&str, &str)]) -> Result<Self> {
        let programs = Programs::find(args)?;
        let runtimes = args.cache.join("runtimes");
        if !runtimes.join("python.tar").exists() {
            bail!(
                "{}: no root filesystem of python: run scripts/setup.sh host",
                runtimes.display()
            );
        }
        let root = tempfile::Builder::new()
            .prefix("rekindle-bench-")
            .tempdir()
            .context("no temporary directory")?;
        let cache = root.path().join("cache");
        fs::create_dir(&cache).with_context(|| format!("{}: cannot be made", cache.display()))?;
        std::os::unix::fs::symlink(&runtimes, cache.join("runtimes"))
            .with_context(|| format!("{}: the runtimes cannot be linked there", cache.display()))?;
        let port = free_port()?;
        let settings: Vec<(String, String)> = settings
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        let child = spawn(&programs, root.path(), port, &args.criu, &settings)?;
        let mut platform = Self {
            child,
            root,
            port,
            programs,
            criu: args.criu.clone(),
            settings,
        };
        platform.until_ready().await?;
        Ok(platform)
    }

    /// Stops it, removes what its worker keeps of snapshots, and starts it again. Layers stay unpacked.
    pub(crate) async fn restart_without_snapshots(&mut self) -> Result<()> {
        self.stop();
        let kept = self.root.path().join("cache/worker");
        for entry in fs::read_dir(&kept).with_context(|| format!("{}: cannot be read", kept.display()))? {
            let path = entry
                .with_context(|| format!("{}: cannot be read", kept.display()))?
                .path();
            if path.is_dir() && !path.ends_with("layers") {
                fs::remove_dir_all(&path).with_context(|| format!("{}: cannot be removed", path.display()))?;
            }
        }
        self.child = spawn(&self.programs, self.root.path(), self.port, &self.criu, &self.settings)?;
        self.until_ready().await
    }

    /// Stops it in an orderly way, or kills it.
    fn stop(&mut self) {
        children::stop(slice::from_mut(&mut self.child));
    }

    async fn until_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + READY_LIMIT;
        loop {
            if self.is_ready().await {
                return Ok(());
            }
            let ended = self.child.try_wait().context("its end cannot be awaited")?;
            if ended.is_some() || Instant::now() > deadline {
                bail!("the platform does not get ready ({ended:?}):\n{}", self.log_tail());
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    }

    async fn is_ready(&self) -> bool {
        let Ok(mut connection) = Connection::open(self.port).await else {
            return false;
        };
        connection
            .call(Method::GET, "/readyz", &[])
            .await
            .is_ok_and(|a| a.status.is_success())
    }

    /// Deploys the function in this folder by `fn deploy` and waits until its snapshot is live.
    pub(crate) fn deploy(&self, folder: &Path) -> Result<VersionInfo> {
        let url = format!("http://127.0.0.1:{}", self.port);
        let deployed = self.programs.deploy(&url, &self.key()?, folder);
        let version = deployed.with_context(|| format!("the end of the platform's log:\n{}", self.log_tail()))?;
        match &version.snapshot_error {
            Some(error) => bail!("{} has no snapshot: {error}", folder.display()),
            None => Ok(version),
        }
    }

    /// Its program, and when that was built.
    pub(crate) fn program(&self) -> String {
        let path = self.programs.cli();
        let built = fs::metadata(&path)
            .and_then(|m| m.modified())
            .map(humantime::format_rfc3339_seconds);
        let built = built.map_or_else(|_| "some time".to_owned(), |at| at.to_string());
        format!("{}, built {built}", path.display())
    }

    /// Removes a function with all its versions.
    pub(crate) fn delete(&self, function: &str) -> Result<()> {
        let url = format!("http://127.0.0.1:{}", self.port);
        self.programs.delete(&url, &self.key()?, function)
    }

    /// The directory that has all of its own.
    pub(crate) fn root(&self) -> &Path {
        self.root.path()
    }

    /// Its admin key.
    pub(crate) fn key(&self) -> Result<String> {
        children::admin_key(self.root.path())
    }

    /// Its admin API.
    pub(crate) fn admin(&self) -> Result<Admin> {
        Ok(Admin::new(self.port, &self.key()?))
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its gateway's port.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    fn log_tail(&self) -> String {
        children::log_tail(&self.root.path().join("log"))
    }
}

impl Drop for Platform {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Starts `fn up` with these directories.
fn spawn(programs: &Programs, root: &Path, port: u16, criu: &Path, settings: &[(String, String)]) -> Result<Child> {
    let mut command = children::command(programs, root, &root.join("log"))?;
    command
        .args(["up", "--foreground", "--listen", &format!("127.0.0.1:{port}"), "--criu"])
        .arg(criu)
        .envs(settings.iter().map(|(k, v)| (k, v)));
    children::spawn(&mut command)
}

impl Programs {
    /// The programs in `--bin`, otherwise those beside this program.
    pub(crate) fn find(args: &Args) -> Result<Self> {
        let own = std::env::current_exe().context("the path of this program is not known")?;
        let dir = match &args.bin {
            Some(dir) => dir.clone(),
            None => own.parent().map(Path::to_owned).unwrap_or_default(),
        };
        for name in ["fn", "rekindle-init"] {
            if !dir.join(name).exists() {
                bail!(
                    "{}: missing: run `make build`, or name its directory with --bin",
                    dir.join(name).display()
                );
            }
        }
        Ok(Self(dir))
    }

    /// `fn`.
    pub(crate) fn cli(&self) -> PathBuf {
        self.0.join("fn")
    }

    /// The sandbox's init.
    pub(crate) fn init(&self) -> PathBuf {
        self.0.join("rekindle-init")
    }

    /// Deploys the function in this folder by `fn deploy` and waits until it is live.
    pub(crate) fn deploy(&self, url: &str, key: &str, folder: &Path) -> Result<VersionInfo> {
        let mut command = self.client(url, key);
        command
            .arg("deploy")
            .arg(folder)
            .args(["--json", "--wait", DEPLOY_LIMIT_S]);
        let output = command.output().context("fn deploy cannot be started")?;
        if !output.status.success() {
            let told = String::from_utf8_lossy(&output.stderr);
            bail!("fn deploy {}: {}", folder.display(), told.trim());
        }
        serde_json::from_slice(&output.stdout).context("fn deploy told no version")
    }

    /// Removes a function with all its versions.
    pub(crate) fn delete(&self, url: &str, key: &str, function: &str) -> Result<()> {
        let mut command = self.client(url, key);
        command.args(["delete", "--yes", function]);
        let output = command.output().context("fn delete cannot be started")?;
        if !output.status.success() {
            bail!(
                "fn delete {function}: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(())
    }

    /// `fn`, as a client of this gateway.
    pub(crate) fn client(&self, url: &str, key: &str) -> Command {
        let mut command = Command::new(self.cli());
        command
            .env("FN_URL", url)
            .env("FN_KEY", key)
            .env("NO_COLOR", "1")
            .stdin(Stdio::null());
        command
    }
}

/// A port that is free now.
pub(crate) fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port")?;
    Ok(listener.local_addr().context("no free port")?.port())
}

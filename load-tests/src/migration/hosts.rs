//! Two workers on this machine, each with directories of its own, as hosts have; a scheduler, a gateway and an object store beside them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rekindle_wire::api::{InstanceInfo, Status, VersionInfo};
use serde::de::DeserializeOwned;
use tempfile::TempDir;

use crate::args::Args;
use crate::client::Connection;
use crate::platform::{Programs, free_port};
use crate::slow_store::SlowStore;

const READY_LIMIT: Duration = Duration::from_secs(90);
const STOP_LIMIT: Duration = Duration::from_secs(30);
const TOLD_LINES: usize = 20;

/// The platform. Dropping it stops it.
pub(super) struct Hosts {
    root: TempDir,
    programs: Programs,
    store: SlowStore,
    children: Vec<Child>,
    port: u16,
}

impl Hosts {
    /// Starts it and waits until both workers are there.
    pub(super) async fn start(args: &Args) -> Result<Self> {
        let programs = Programs::find(args)?;
        let root = tempfile::Builder::new().prefix("rkb").tempdir();
        let root = root.context("no temporary directory")?;
        let store = SlowStore::start(root.path())?;
        let (scheduler, port) = (free_port()?, free_port()?);
        let mut hosts = Self {
            root,
            programs,
            store,
            children: Vec::new(),
            port,
        };
        for role in ["s", "w1", "w2", "g"] {
            hosts.make_directories(role, &args.cache)?;
        }
        let at = format!("127.0.0.1:{scheduler}");
        hosts.spawn("s", &["scheduler", "--listen", &at])?;
        let token = hosts.root.path().join("s/data/cluster.token");
        hosts
            .until("the scheduler", || Ok(token.exists().then_some(())))
            .await?;
        for role in ["w1", "w2", "g"] {
            let to = hosts.root.path().join(role).join("data/cluster.token");
            fs::copy(&token, &to).with_context(|| format!("{}: cannot be written", to.display()))?;
        }
        hosts.import()?;
        let criu = args.criu.display().to_string();
        for role in ["w1", "w2"] {
            let listen = format!("127.0.0.1:{}", free_port()?);
            hosts.spawn(
                role,
                &["worker", "--listen", &listen, "--scheduler", &at, "--criu", &criu],
            )?;
        }
        let listen = format!("127.0.0.1:{port}");
        hosts.spawn("g", &["gateway", "--listen", &listen, "--scheduler", &at])?;
        let deadline = Instant::now() + READY_LIMIT;
        loop {
            let status: Option<Status> = hosts.get("/v1/status").await.ok();
            if status.is_some_and(|s| s.workers.iter().filter(|w| w.alive).count() == 2) {
                return Ok(hosts);
            }
            if Instant::now() > deadline {
                bail!("the platform does not get ready:\n{}", hosts.log_tail());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn make_directories(&self, role: &str, cache: &Path) -> Result<()> {
        let own = self.root.path().join(role);
        for name in ["data", "cache"] {
            fs::create_dir_all(own.join(name)).with_context(|| format!("{}: cannot be made", own.display()))?;
        }
        let link = own.join("cache/runtimes");
        std::os::unix::fs::symlink(cache.join("runtimes"), link).context("the runtimes cannot be linked")
    }

    async fn until(&self, what: &str, ready: impl Fn() -> Result<Option<()>>) -> Result<()> {
        let deadline = Instant::now() + READY_LIMIT;
        while ready()?.is_none() {
            if Instant::now() > deadline {
                bail!("{what} does not get ready:\n{}", self.log_tail());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    fn command(&self, role: &str) -> Result<Command> {
        let own = self.root.path().join(role);
        let log = File::options().create(true).append(true).open(self.log());
        let log = log.context("no log")?;
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "TERM"])
            .arg(self.programs.cli())
            .env("FN_DATA", own.join("data"))
            .env("FN_CACHE", own.join("cache"))
            .env("FN_RUN", own.join("run"))
            .env("FN_CLUSTER_TOKEN_FILE", own.join("data/cluster.token"))
            .env("FN_ADMIN_KEY_FILE", own.join("data/admin.key"))
            .env_remove("OTEL_EXPORTER_OTLP_ENDPOINT")
            .env_remove("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
            .env_remove("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("no more file descriptors")?)
            .stderr(log);
        if role != "g" {
            command.envs(self.store.environment());
        }
        Ok(command)
    }

    fn spawn(&mut self, role: &str, args: &[&str]) -> Result<()> {
        let child = self.command(role)?.args(args).spawn();
        self.children
            .push(child.with_context(|| format!("{role} cannot be started"))?);
        Ok(())
    }

    fn import(&self) -> Result<()> {
        let status = self.command("w1")?.args(["runtimes", "import"]).status();
        if !status.context("fn runtimes import cannot be started")?.success() {
            bail!("the runtimes are not imported:\n{}", self.log_tail());
        }
        Ok(())
    }

    fn log(&self) -> PathBuf {
        self.root.path().join("log")
    }

    /// The end of what all roles have logged.
    pub(super) fn log_tail(&self) -> String {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(TOLD_LINES)..].join("\n")
    }

    /// Its admin key.
    pub(super) fn key(&self) -> Result<String> {
        let path = self.root.path().join("g/data/admin.key");
        let key = fs::read_to_string(&path).with_context(|| format!("{}: no admin key", path.display()))?;
        Ok(key.trim().to_owned())
    }

    /// Where its gateway listens.
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The answer of the admin API.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        serde_json::from_str(&self.text(path).await?).with_context(|| format!("{path}: not understood"))
    }

    /// The same, as it comes.
    pub(super) async fn text(&self, path: &str) -> Result<String> {
        let key = format!("Bearer {}", self.key()?);
        let mut connection = Connection::open(self.port).await?;
        let answer = connection
            .call(http::Method::GET, path, &[("authorization", &key)])
            .await?;
        if !answer.status.is_success() {
            bail!("{path}: {}: {}", answer.status, answer.text());
        }
        String::from_utf8(answer.body.to_vec()).with_context(|| format!("{path}: no text"))
    }

    /// Deploys a folder and waits until it is live.
    pub(super) fn deploy(&self, folder: &Path) -> Result<VersionInfo> {
        let deployed = self.programs.deploy(&self.url(), &self.key()?, folder);
        deployed.with_context(|| format!("the end of the log:\n{}", self.log_tail()))
    }

    /// Removes a function.
    pub(super) fn delete(&self, function: &str) -> Result<()> {
        self.programs.delete(&self.url(), &self.key()?, function)
    }

    /// Runs `fn` with these arguments, and reads the JSON it prints.
    pub(super) fn command_line<T: DeserializeOwned>(&self, args: &[&str]) -> Result<T> {
        let output = self.programs.client(&self.url(), &self.key()?).args(args).output();
        let output = output.context("fn cannot be started")?;
        if !output.status.success() {
            let told = String::from_utf8_lossy(&output.stderr);
            bail!("fn {}: {}\n{}", args.join(" "), told.trim(), self.log_tail());
        }
        serde_json::from_slice(&output.stdout).with_context(|| format!("fn {}: not understood", args.join(" ")))
    }

    /// Stops an instance.
    pub(super) async fn delete_instance(&self, instance: &str) -> Result<()> {
        let key = format!("Bearer {}", self.key()?);
        let mut connection = Connection::open(self.port).await?;
        let path = format!("/v1/instances/{instance}");
        let answer = connection
            .call(http::Method::DELETE, &path, &[("authorization", &key)])
            .await?;
        if !answer.status.is_success() {
            bail!("{path}: {}: {}", answer.status, answer.text());
        }
        Ok(())
    }

    /// The instances of a function.
    pub(super) async fn instances(&self, function: &str) -> Result<Vec<InstanceInfo>> {
        let all: Vec<InstanceInfo> = self.get("/v1/instances").await?;
        Ok(all.into_iter().filter(|i| i.function.as_str() == function).collect())
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for child in &mut self.children {
            if let Ok(pid) = i32::try_from(child.id()) {
                // It may have ended, which is what we want.
                let _ended = kill(Pid::from_raw(pid), Signal::SIGTERM);
            }
        }
        let deadline = Instant::now() + STOP_LIMIT;
        for child in &mut self.children {
            while Instant::now() < deadline && matches!(child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(10));
            }
            let _ended = child.kill();
            let _reaped = child.wait();
        }
    }
}

//! Two workers on this machine, each with directories of its own, like separate hosts; a scheduler, a gateway and an
//! object store beside them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rekindle_wire::api::VersionInfo;
use serde::de::DeserializeOwned;
use tempfile::TempDir;

use crate::admin::Admin;
use crate::args::Args;
use crate::children;
use crate::platform::{Programs, free_port};
use crate::slow_store::SlowStore;

const READY_LIMIT: Duration = Duration::from_secs(90);

/// The platform. Dropping it stops it.
pub(crate) struct Hosts {
    root: TempDir,
    programs: Programs,
    store: SlowStore,
    children: Vec<Child>,
    port: u16,
    settings: Vec<(String, String)>,
}

impl Hosts {
    /// Starts it with these settings in its environment, and waits until both workers are there.
    pub(crate) async fn start(args: &Args, settings: &[(&str, &str)]) -> Result<Self> {
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
            settings: settings
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
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
        let key = hosts.root.path().join("g/data/admin.key");
        hosts.until("the gateway", || Ok(key.exists().then_some(()))).await?;
        let alive = hosts.admin()?.until_alive(2, READY_LIMIT).await;
        alive.with_context(|| hosts.log_tail())?;
        Ok(hosts)
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
        let mut command = children::command(&self.programs, &own, &self.log())?;
        command
            .env("FN_CLUSTER_TOKEN_FILE", own.join("data/cluster.token"))
            .env("FN_ADMIN_KEY_FILE", own.join("data/admin.key"))
            .envs(self.settings.iter().map(|(k, v)| (k, v)));
        if role != "g" {
            command.envs(self.store.environment());
        }
        Ok(command)
    }

    fn spawn(&mut self, role: &str, args: &[&str]) -> Result<()> {
        let child = children::spawn(self.command(role)?.args(args))?;
        self.children.push(child);
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

    /// The end of the log of all roles.
    pub(crate) fn log_tail(&self) -> String {
        children::log_tail(&self.log())
    }

    /// Its admin key.
    pub(crate) fn key(&self) -> Result<String> {
        children::admin_key(&self.root.path().join("g"))
    }

    /// Its admin API.
    pub(crate) fn admin(&self) -> Result<Admin> {
        Ok(Admin::new(self.port, &self.key()?))
    }

    /// Its gateway's port.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Deploys a folder and waits until it is live.
    pub(crate) fn deploy(&self, folder: &Path) -> Result<VersionInfo> {
        let deployed = self.programs.deploy(&self.url(), &self.key()?, folder);
        deployed.with_context(|| format!("the end of the log:\n{}", self.log_tail()))
    }

    /// Removes a function.
    pub(crate) fn delete(&self, function: &str) -> Result<()> {
        self.programs.delete(&self.url(), &self.key()?, function)
    }

    /// Runs `fn` with these arguments, and parses the JSON it prints.
    pub(crate) fn command_line<T: DeserializeOwned>(&self, args: &[&str]) -> Result<T> {
        let output = self.programs.client(&self.url(), &self.key()?).args(args).output();
        let output = output.context("fn cannot be started")?;
        if !output.status.success() {
            let told = String::from_utf8_lossy(&output.stderr);
            bail!("fn {}: {}\n{}", args.join(" "), told.trim(), self.log_tail());
        }
        serde_json::from_slice(&output.stdout).with_context(|| format!("fn {}: not understood", args.join(" ")))
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        children::stop(&mut self.children);
    }
}

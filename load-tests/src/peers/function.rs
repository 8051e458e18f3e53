//! The function as a process on the host: the same bootstrap, the same files, the same environment as in an instance.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::args::checkout;
use crate::folder::copy;

/// Debian's, which the platform's runtime has too; a shim of a version switcher in PATH would be measured with it.
const PYTHON: &str = "/usr/bin/python3";
/// Above the ports that the kernel gives to clients, so that none of them takes it between two restores.
const PORTS: std::ops::Range<u16> = 61_000..65_000;
/// Makes the process one that CRIU can dump: the leader of a session of its own, with no descriptor of ours.
const LEADER: &str =
    "import os, sys; os.setsid(); os.closerange(3, 4096); os.execv(sys.executable, [sys.executable] + sys.argv[1:])";

/// Its files, in a directory of the peers' own.
pub(super) struct Function {
    bootstrap: PathBuf,
    app: PathBuf,
}

impl Function {
    /// Copies bootstrap and function below `dir`, so that the bytecode that Python keeps of them is not in the checkout.
    pub(super) fn copied_to(dir: &Path) -> Result<Self> {
        if !Path::new(PYTHON).exists() {
            bail!("{PYTHON}: missing: install python3");
        }
        let (runtime, app) = (dir.join("runtime"), dir.join("app"));
        copy(
            &checkout().join("functions/runtimes/python/overlay/opt/rekindle/python"),
            &runtime,
        )?;
        copy(&checkout().join("functions/samples/touch-python"), &app)?;
        Ok(Self {
            bootstrap: runtime.join("bootstrap.py"),
            app,
        })
    }

    /// The interpreter's path and version.
    pub(super) fn interpreter(&self) -> String {
        let output = Command::new(PYTHON).arg("--version").output();
        let version = output
            .map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned())
            .unwrap_or_default();
        format!("{version} at {PYTHON}")
    }

    /// Starts it on this port.
    pub(super) fn command(&self, port: u16) -> Command {
        let mut command = self.interpreter_command(port);
        command.arg("-u").arg(&self.bootstrap);
        command
    }

    /// The same, but as a process that can be checkpointed.
    pub(super) fn leader_command(&self, port: u16) -> Command {
        let mut command = self.interpreter_command(port);
        command.args(["-c", LEADER, "-u"]).arg(&self.bootstrap);
        command
    }

    /// docs/runtime-contract.md, Environment.
    fn interpreter_command(&self, port: u16) -> Command {
        let mut command = Command::new(PYTHON);
        command
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("LANG", "C.UTF-8")
            .env("HOME", "/tmp")
            .env("TMPDIR", "/tmp")
            .env("PORT", port.to_string())
            .env("FN_HANDLER", "main.handler")
            .env("FN_NAME", "touch")
            .env("FN_VERSION", "1")
            .env("FN_MEMORY_MIB", "256")
            .env("FN_TIMEOUT_S", "30")
            .current_dir(&self.app)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    /// A port that nobody listens on now.
    pub(super) fn free_port(&self) -> Result<u16> {
        let free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
        PORTS.clone().find(free).context("no free port above 61000")
    }
}

/// A process of ours; killed when dropped, and gone then.
pub(super) struct Running(Child);

impl Running {
    /// Starts it.
    pub(super) fn start(command: &mut Command) -> Result<Self> {
        let program = command.get_program().to_owned();
        command
            .spawn()
            .map(Self)
            .with_context(|| format!("{}: cannot be started", program.display()))
    }

    /// Its pid, as seen in this pid namespace.
    pub(super) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// An error if it has ended.
    pub(super) fn still_runs(&mut self) -> Result<()> {
        match self.0.try_wait().context("its end cannot be awaited")? {
            None => Ok(()),
            Some(status) => bail!("the process ended: {status}"),
        }
    }

    /// Its exit status, if it has ended.
    pub(super) fn ended(&mut self) -> Result<Option<std::process::ExitStatus>> {
        self.0.try_wait().context("its end cannot be awaited")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended, which is what we want.
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

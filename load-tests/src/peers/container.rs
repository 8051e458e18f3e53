//! A container for each start, by crun or runc: the same root filesystem and command, read-only, in namespaces of its
//! own, with a control group. It shares the host's network, so no peer pays for one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use http::Method;
use nix::mount::{MntFlags, umount2};
use rekindle_testkit::platform::free_port;
use serde_json::json;

use super::function::{Function, Running};
use crate::client::Connection;

/// An empty unified hierarchy beside the v1 ones makes crun refuse; in the peers' mount namespace it may be unmounted.
const UNIFIED: &str = "/sys/fs/cgroup/unified";

/// One of the two runtimes.
pub(super) struct Containers {
    program: &'static str,
    version: String,
    bundle: PathBuf,
    state: PathBuf,
    port: u16,
}

impl Containers {
    /// Writes the bundle and tries one start.
    pub(super) async fn prepare(program: &'static str, dir: &Path, function: &Function) -> Result<Self> {
        let version = version(program)?;
        if Path::new(UNIFIED).exists() {
            // It may not be a mount of its own, or may be gone already.
            let _gone = umount2(UNIFIED, MntFlags::MNT_DETACH);
        }
        let (bundle, state) = (
            dir.join(format!("{program}-bundle")),
            dir.join(format!("{program}-state")),
        );
        for dir in [&bundle, &state] {
            fs::create_dir(dir).with_context(|| format!("{}: cannot be made", dir.display()))?;
        }
        let port = free_port();
        let config = serde_json::to_vec(&config(program, function, port)).context("the bundle is not JSON")?;
        fs::write(bundle.join("config.json"), config).context("the bundle cannot be written")?;
        let out = Self {
            program,
            version,
            bundle,
            state,
            port,
        };
        out.start().await?;
        Ok(out)
    }

    /// Its version, as it reports it.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// One start: milliseconds until the last byte of the first response. The container is gone when this returns.
    pub(super) async fn start(&self) -> Result<f64> {
        let log = self.state.join("log");
        let errors = fs::File::create(&log).with_context(|| format!("{}: cannot be made", log.display()))?;
        let mut command = self.command();
        command
            .arg("run")
            .arg("--bundle")
            .arg(&self.bundle)
            .arg(self.id())
            .stderr(errors);
        let triggered = Instant::now();
        let mut running = Running::start(&mut command)?;
        let answered = async {
            let mut connection = Connection::open_when_listening(self.port, || running.still_runs()).await?;
            let answer = connection.call(Method::GET, "/", &[]).await?;
            let ms = triggered.elapsed().as_secs_f64() * 1_000.0;
            answer.of_function()?;
            anyhow::Ok(ms)
        }
        .await;
        let deleted = self
            .command()
            .args(["delete", "--force"])
            .arg(self.id())
            .stderr(Stdio::null())
            .status();
        deleted.with_context(|| format!("{} cannot be started", self.program))?;
        answered.with_context(|| fs::read_to_string(&log).unwrap_or_default().trim().to_owned())
    }

    fn id(&self) -> String {
        format!("rekindle-bench-{}", self.program)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.program);
        command
            .arg("--root")
            .arg(&self.state)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command
    }
}

/// The first line of a program's version.
pub(super) fn version(program: &str) -> Result<String> {
    let output = Command::new(program).arg("--version").output();
    let output = output.with_context(|| format!("{program} is not installed: run scripts/install-peers.sh"))?;
    if !output.status.success() {
        bail!("{program} --version: {}", output.status);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}

/// The OCI runtime configuration.
fn config(program: &str, function: &Function, port: u16) -> serde_json::Value {
    let workload = function.workload();
    let environment: Vec<String> = workload
        .environment(port)
        .iter()
        .map(|(k, v)| format!("{k}={v}"))
        .collect();
    let tmpfs =
        |at: &str, options: &[&str]| json!({"destination": at, "type": "tmpfs", "source": "tmpfs", "options": options});
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "terminal": false,
            "user": {"uid": 0, "gid": 0},
            "args": workload.command(),
            "env": environment,
            "cwd": "/app",
            "noNewPrivileges": true,
        },
        "root": {"path": function.root(), "readonly": true},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            tmpfs("/dev", &["nosuid", "mode=755", "size=64k"]),
            tmpfs("/tmp", &["nosuid", "nodev"]),
            {"destination": "/app", "type": "bind", "source": function.app(), "options": ["bind", "ro"]},
        ],
        "linux": {
            "namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}],
            "cgroupsPath": format!("/rekindle-bench-{program}"),
        },
    })
}

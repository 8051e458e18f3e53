//! podman: a container for each start, and restores of a checkpoint that it has exported. Its storage is on the peers'
//! tmpfs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use http::Method;
use rekindle_testkit::platform::free_port;

use super::container::version;
use super::function::Function;
use crate::client::Connection;

const IMAGE: &str = "rekindle-bench";
/// Debian's crun cannot restore; its runc can, with a CRIU on PATH.
const RUNTIME: &str = "runc";

/// podman with the function's image.
pub(super) struct Podman {
    version: String,
    dir: PathBuf,
    path: String,
    driver: &'static str,
    port: u16,
    options: Vec<String>,
    command: &'static [&'static str],
    export: Option<PathBuf>,
}

impl Podman {
    /// Imports the root filesystem as an image and tries one start.
    pub(super) async fn prepare(dir: &Path, archive: &Path, criu: &Path, function: &Function) -> Result<Self> {
        let workload = function.workload();
        let port = free_port();
        let volume = format!("{}:/app:ro", function.app().display());
        // A root without CAP_SYS_RESOURCE cannot set limits above the hard ones of this process.
        let fixed = [
            "--network=host",
            "--ulimit=nofile=1024:1024",
            "--ulimit=nproc=1000:1000",
            "--cap-drop=all",
            "--log-driver=none",
            "--workdir=/app",
            "--pull=never",
            "--detach",
            "--volume",
            &volume,
        ];
        let environment = workload
            .environment(port)
            .into_iter()
            .map(|(k, v)| format!("--env={k}={v}"));
        let own = std::env::var("PATH").unwrap_or_default();
        let beside = criu.parent().unwrap_or(Path::new("/")).display().to_string();
        let mut podman = Self {
            version: format!("{}, {}", version("podman")?, version(RUNTIME)?),
            dir: dir.join("podman"),
            path: format!("{beside}:{own}"),
            driver: "overlay",
            port,
            options: fixed.iter().map(|o| (*o).to_owned()).chain(environment).collect(),
            command: workload.command(),
            export: None,
        };
        if podman.import(archive).and(podman.start().await.map(drop)).is_err() {
            // This tmpfs has no overlay: whole copies are used instead, which take longer.
            podman.driver = "vfs";
            podman.version += ", storage driver vfs";
            podman.import(archive)?;
            podman.start().await?;
        }
        Ok(podman)
    }

    /// Its version, as it reports it.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// One start: milliseconds until the last byte of the first response. The container is gone when this returns.
    pub(super) async fn start(&self) -> Result<f64> {
        let mut command = self.podman();
        command
            .args(["run", "--name", "start"])
            .args(&self.options)
            .arg(IMAGE)
            .args(self.command);
        let ms = self.answered(command).await;
        let removed = self.remove("start");
        let ms = ms?;
        removed.map(|()| ms)
    }

    /// Checkpoints a container after its warm-up, exports it, and tries one restore.
    pub(super) async fn checkpoint(&mut self) -> Result<()> {
        let mut command = self.podman();
        command
            .args(["run", "--name", "origin"])
            .args(&self.options)
            .arg(IMAGE)
            .args(self.command);
        self.answered(command).await?;
        let mut connection = Connection::open(self.port).await?;
        for _ in 0..3 {
            connection.call(Method::GET, "/", &[]).await?.of_function()?;
        }
        // As the platform does before its own. A container without such a hook answers something else, which does not
        // matter.
        let _hooked = connection.call(Method::POST, "/.rekindle/before-snapshot", &[]).await?;
        drop(connection);
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        let export = self.dir.join("checkpoint.tar");
        let mut command = self.podman();
        command
            .args(["container", "checkpoint", "--compress", "none", "--export"])
            .arg(&export)
            .arg("origin");
        let dumped = finished(command);
        self.remove("origin")?;
        dumped?;
        self.export = Some(export);
        self.restore().await.map(drop)
    }

    /// One restore of the exported checkpoint, likewise.
    pub(super) async fn restore(&self) -> Result<f64> {
        let export = self.export.as_ref().context("there is no checkpoint")?;
        let mut command = self.podman();
        command
            .args(["container", "restore", "--name", "restored", "--import"])
            .arg(export);
        let ms = self.answered(command).await;
        let removed = self.remove("restored");
        let ms = ms?;
        removed.map(|()| ms)
    }

    /// From the start of the command to the last byte of the first response.
    async fn answered(&self, mut command: Command) -> Result<f64> {
        let log = self.dir.join("log");
        let errors = fs::File::create(&log).with_context(|| format!("{}: cannot be made", log.display()))?;
        command.stderr(errors);
        let told = || fs::read_to_string(&log).unwrap_or_default().trim().to_owned();
        let triggered = Instant::now();
        let mut child = command.spawn().context("podman cannot be started")?;
        let answer = async {
            let mut connection = Connection::open_when_listening(self.port, || match child.try_wait() {
                Ok(Some(status)) if !status.success() => bail!("podman: {status}"),
                _ => Ok(()),
            })
            .await?;
            connection.call(Method::GET, "/", &[]).await
        }
        .await;
        let ms = triggered.elapsed().as_secs_f64() * 1_000.0;
        child.wait().context("podman's end cannot be awaited")?;
        answer.and_then(crate::client::Reply::of_function).with_context(told)?;
        Ok(ms)
    }

    fn import(&self, archive: &Path) -> Result<()> {
        fs::create_dir_all(&self.dir).with_context(|| format!("{}: cannot be made", self.dir.display()))?;
        // podman mounts a file of its own where the platform has a link into /proc, which runc refuses.
        let image = self.dir.join("image.tar");
        fs::copy(archive, &image).with_context(|| format!("{}: cannot be copied", archive.display()))?;
        let mut delete = Command::new("tar");
        delete.arg("--delete").arg("--file").arg(&image).arg("./etc/hostname");
        finished(delete)?;
        let mut command = self.podman();
        command.arg("import").arg(&image).arg(IMAGE);
        finished(command)?;
        fs::remove_file(&image).with_context(|| format!("{}: cannot be removed", image.display()))
    }

    fn remove(&self, name: &str) -> Result<()> {
        let mut command = self.podman();
        command.args(["rm", "--force", "--time", "0", name]);
        finished(command)
    }

    fn podman(&self) -> Command {
        let mut command = Command::new("podman");
        command
            .arg("--root")
            .arg(self.dir.join(self.driver))
            .arg("--runroot")
            .arg(self.dir.join("run"))
            .args(["--storage-driver", self.driver, "--cgroup-manager", "cgroupfs"])
            .args(["--runtime", RUNTIME, "--events-backend", "none"])
            .env("PATH", &self.path)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command
    }
}

fn finished(mut command: Command) -> Result<()> {
    let program = command.get_program().display().to_string();
    let output = command.stderr(Stdio::piped()).output();
    let output = output.with_context(|| format!("{program}: cannot be started"))?;
    if !output.status.success() {
        bail!(
            "{program}: {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

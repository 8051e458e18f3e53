//! Boots an instance from nothing: runs the runtime's program in a new sandbox until it accepts connections.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rekindle_confined::image::Config;
use rekindle_init::protocol::Spawn;
use rekindle_init::seccomp::FilterChoice;
use rekindle_snapshotter::Store;
use rekindle_wire::api::StartKind;
use rekindle_wire::internal::VersionSpec;
use rekindle_wire::{ApiError, ErrorCode};

use super::boot_pauses::BootPauses;
use super::end::ended_before;
use super::isolate::Isolator;
use super::lifecycle::Instance;
use super::missing;
use super::program::Program;
use super::running::{MemoryOrigin, RunningInstance};
use crate::errors::unavailable;
use crate::host::cgroup::Cgroup;
use crate::host::sandbox::{FunctionState, IsolatedProcess, Sandbox};
use crate::host::start_limiter::{KEEP, StartLimiter};
use crate::layers::{Layers, image};
use crate::logs::telling::telling;
use crate::snapshots::expected::OPEN_FILES;

/// Interval between checks whether a booting function listens.
const KNOCK_EVERY: Duration = Duration::from_millis(2);
/// How long to wait for the function's last lines of output.
const DRAIN_LIMIT: Duration = Duration::from_millis(200);
/// Maximum number of output lines shown when a function fails to start.
const TAIL: usize = 12;

/// Boots instances.
pub struct Booter {
    /// Takes the sandboxes.
    pub isolator: Arc<Isolator>,
    /// Limits how many starts use the processors at once.
    pub start_limiter: Arc<StartLimiter>,
    /// Unpacked layers of this host.
    pub layers: Arc<Layers>,
    /// The store with the runtimes' root filesystems.
    pub store: Store,
    /// The system call filter of functions.
    pub filter: FilterChoice,
    /// The pauses of versions whose boots fail.
    pub pauses: BootPauses,
}

impl Booter {
    /// Boots `instance` without marking it ready.
    ///
    /// # Errors
    /// Returns `boot_failed`, with the function's last lines, when the function ends or does not listen in time.
    pub async fn boot(&self, instance: &Arc<Instance>) -> Result<Arc<RunningInstance>, ApiError> {
        let spec = &instance.spec;
        let began = Instant::now();
        self.pauses.admit(spec, began)?;
        let program = match &spec.config.image {
            Some(_) => Program::of_image(spec, self.image_config(spec).await?),
            None => Program::of(spec),
        };
        let booted = self.boot_with(instance, program).await;
        // One that was asked to stop has not failed.
        if booted.is_ok() || instance.is_starting() {
            self.pauses.note(spec, began, Instant::now(), &booted);
        }
        booted
    }

    /// Returns whether the files of a version have the reaper. Those of versions built earlier have none.
    pub(crate) async fn has_reaper(&self, spec: &VersionSpec) -> bool {
        let layer = match spec.config.image {
            Some(_) => &spec.rootfs,
            None => &spec.layer,
        };
        let Ok(files) = self.layers.get(layer).await else {
            return false;
        };
        let path = files.path().join(rekindle_reaper::PATH);
        let looked = tokio::task::spawn_blocking(move || path.metadata().is_ok_and(|file| file.len() > 0));
        looked.await.unwrap_or(false)
    }

    /// Returns how the image of a version wants to be run.
    async fn image_config(&self, spec: &VersionSpec) -> Result<Config, ApiError> {
        let rootfs = self.layers.get(&spec.rootfs).await;
        let rootfs = rootfs.map_err(|e| unavailable("fetch the image", &e))?;
        let config = tokio::task::spawn_blocking(move || image::config(rootfs.path())).await;
        let config = config.map_err(|e| unavailable("read the image's configuration", &e))?;
        config.map_err(|e| unavailable("read the image's configuration", &e))
    }

    /// Boots the bootstrap of the instance's runtime. It listens but has loaded nothing yet, so it contains nothing of
    /// this function.
    ///
    /// # Errors
    /// The same as [`Self::boot`].
    pub(crate) async fn boot_unloaded(&self, instance: &Arc<Instance>) -> Result<Arc<RunningInstance>, ApiError> {
        self.boot_with(instance, Program::unloaded(&instance.spec)).await
    }

    async fn boot_with(&self, instance: &Arc<Instance>, program: Program) -> Result<Arc<RunningInstance>, ApiError> {
        let spec = &instance.spec;
        // The permit comes when they are here, as for restores: a slow store must not hold up other starts.
        let files = instance.phase("files", self.isolator.fetch(instance)).await?;
        let turn = self.start_limiter.take(&instance.spec.function, StartKind::Booted);
        let permit = instance.phase("turn", turn).await;
        // Others may have failed meanwhile.
        self.pauses.admit(spec, Instant::now())?;
        let name = instance.sandbox_name();
        let isolated = instance.phase("sandbox", self.isolator.isolate_with(None, instance, &name, files));
        let isolated = isolated.await?;
        // There is nothing to restore.
        if let Some(criu) = isolated.criu {
            criu.let_go();
        }
        let sandbox = &isolated.sandbox;
        let [stdout, stderr] = &isolated.outputs;
        let order = Spawn {
            argv: program.argv,
            reaper: spec.reaper.then(|| reaper(spec)),
            env: program.env,
            cwd: program.cwd,
            // Without a snapshot every start is a boot, and a program may rely on them.
            secrets: !spec.config.snapshot && !instance.secrets().is_empty(),
            open_files: OPEN_FILES,
            filter: self.filter.earlier().map(str::to_owned),
        };
        let group = isolated.cgroup.function_procs();
        let group = group.map_err(|e| unavailable("find the function's control group", &e))?;
        sandbox
            .spawn(order, &stdout.write_end, &stderr.write_end, &group)
            .await
            .map_err(|e| ApiError::new(ErrorCode::BootFailed, unavailable("start the function", &e).message))?;
        let heard = async {
            let mut listening = std::pin::pin!(self.listening(instance, sandbox, &isolated.cgroup));
            match tokio::time::timeout(KEEP, &mut listening).await {
                Ok(heard) => heard,
                Err(_) => {
                    drop(permit);
                    listening.await
                }
            }
        };
        instance.phase("listen", heard).await?;
        let IsolatedProcess {
            cgroup,
            sandbox,
            outputs,
            ..
        } = isolated;
        let origin = MemoryOrigin::default();
        let running = RunningInstance::new(sandbox, cgroup, &outputs, None, origin, &spec.config);
        running.map_err(|e| unavailable("name the output pipes", &e))
    }

    async fn listening(&self, instance: &Instance, sandbox: &Arc<Sandbox>, cgroup: &Cgroup) -> Result<(), ApiError> {
        let mut state = sandbox.function_state();
        let port = instance.spec.config.port;
        let knock = async {
            while sandbox.connect(port).await.is_err() {
                tokio::time::sleep(KNOCK_EVERY).await;
            }
        };
        let limit = instance.spec.config.boot_timeout();
        let said = tokio::select! {
            () = knock => return Ok(()),
            ended = state.wait_for(|s| *s != FunctionState::Alive) => {
                let state = ended.map_or(FunctionState::SandboxGone, |state| *state);
                ended_before("it served HTTP", instance, state, cgroup.oom_kills().unwrap_or(0))
            }
            () = tokio::time::sleep(limit) => String::new(),
        };
        let said = match said.is_empty() {
            false => said,
            true => format!(
                "did not accept connections on 127.0.0.1:$PORT ({port}) within boot_timeout, {} s: raise that in \
                 fn.toml if it needs longer{}",
                limit.as_secs(),
                self.other_port(&instance.spec).await
            ),
        };
        Err(self.not_started(instance, &said).await)
    }

    /// Returns what to do if an image says that it listens on another port.
    async fn other_port(&self, spec: &VersionSpec) -> String {
        if spec.config.image.is_none() {
            return String::new();
        }
        let ports = self.image_config(spec).await.map(|image| image.ports);
        match ports.unwrap_or_default().as_slice() {
            [port, ..] if *port != spec.config.port => {
                format!(", or set port = {port}, on which the image says that it listens")
            }
            _ => String::new(),
        }
    }

    /// Builds the error for a function that did not start, with the lines of its output that probably explain why.
    pub(crate) async fn not_started(&self, instance: &Instance, said: &str) -> ApiError {
        // The last lines may still be in the pipe.
        instance.sink.drained(DRAIN_LIMIT).await;
        let lines: Vec<String> = instance.sink.tail(usize::MAX).into_iter().map(|l| l.text).collect();
        let lacks = match missing::library(lines.iter().rev().map(String::as_str)) {
            Some(library) => missing::advice(&self.store, &instance.spec.config, library).await + "; ",
            None => String::new(),
        };
        let told = match lines.is_empty() {
            true => "it wrote nothing".to_owned(),
            false => format!("it wrote:\n{}", telling(&lines, TAIL).join("\n")),
        };
        ApiError::new(
            ErrorCode::BootFailed,
            format!("the function's process {said}; {lacks}{told}"),
        )
    }
}

/// Returns the path of the reaper inside a sandbox.
fn reaper(spec: &VersionSpec) -> String {
    let files = match spec.config.image {
        Some(_) => "/",
        None => "/app/",
    };
    format!("{files}{}", rekindle_reaper::PATH)
}

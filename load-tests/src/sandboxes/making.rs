//! Our sandbox, step by step: as the worker makes, takes and ends it, without the rest of the platform.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rekindle_criu::{Prestart, Session};
use rekindle_init::protocol::{Layers, Machine, Setup};
use rekindle_testkit::binaries::Programs;
use rekindle_worker::host::cgroup::{CGROUP_ROOT, Cgroups, Limits};
use rekindle_worker::host::network::{Egress, Network};
use rekindle_worker::host::sandbox::{CriuUse, Sandbox, Zygote};
use tempfile::TempDir;

use crate::args::Args;

/// Limits of a sandbox here.
pub(super) const LIMITS: Limits = Limits {
    memory_bytes: 144 << 20,
    cpu_cores: 1.0,
    pids: 512,
};
/// The least that a root filesystem has.
const SKELETON: [&str; 7] = ["app", "dev", "etc", "proc", "run", "sys", "tmp"];
const CRIU_LIMIT: Duration = Duration::from_secs(10);

/// How a sandbox is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SandboxKind {
    /// With the same parts as the bare floor: no CRIU, no link. Its control group is made, and removed.
    Lean,
    /// The same parts, in a control group that is reused.
    Again,
    /// As the pool makes them: CRIU and a link too.
    Whole,
}

/// The milliseconds of each step of one sandbox, in order.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Steps {
    /// Its control group is made or reused, with limits.
    pub(super) group: f64,
    /// Init is started, joins the group, enters its namespaces and brings the loopback up.
    pub(super) namespaces: f64,
    /// A CRIU is started inside and has answered.
    pub(super) criu: f64,
    /// It is linked to the router.
    pub(super) link: f64,
    /// The group is renamed and given a function's limits.
    pub(super) assign: f64,
    /// The files are laid out.
    pub(super) furnish: f64,
    /// Everything inside is killed, and the namespaces end as far as that is awaited.
    pub(super) end: f64,
    /// The group is removed, or cleaned and kept.
    pub(super) remove: f64,
}

impl Steps {
    /// From nothing to furnished.
    pub(super) fn made(&self) -> f64 {
        self.group + self.namespaces + self.criu + self.link + self.assign + self.furnish
    }

    /// Each step by its name.
    pub(super) fn told(&self) -> [(&'static str, f64); 8] {
        [
            ("control group: have it again, limit", self.group),
            ("init: fork, join the group, namespaces, loopback", self.namespaces),
            ("CRIU: start, hear from it", self.criu),
            ("link to the router, packet filter", self.link),
            ("control group: rename, limit", self.assign),
            ("files: mounts, pivot_root", self.furnish),
            ("kill, reap", self.end),
            ("control group: clean, keep", self.remove),
        ]
    }

    /// The steps that the bare floor has too, without CRIU and the link: from nothing to gone.
    pub(super) fn lean(&self) -> f64 {
        self.group + self.namespaces + self.furnish + self.end + self.remove
    }
}

/// Where sandboxes are made.
pub(super) struct Place {
    pub(super) cgroups: Cgroups,
    pub(super) parent: String,
    pub(super) zygote: Arc<Zygote>,
    _stage: TempDir,
    pub(super) prestart: Prestart,
    pub(super) network: Option<Arc<Network>>,
    skeleton: TempDir,
    made: AtomicU64,
}

impl Place {
    /// Makes the place, with a control group and a router of its own. `egress` is off if the host must not be changed.
    pub(super) async fn make(args: &Args, egress: bool) -> Result<Self> {
        let parent = format!("rekindle-bench-{}", std::process::id());
        let cgroups = Cgroups::detect_below(Path::new(CGROUP_ROOT), &parent)?;
        let skeleton = tempfile::Builder::new()
            .prefix("rekindle-sandboxes-")
            .tempdir()
            .context("no temporary directory")?;
        for name in SKELETON {
            fs::create_dir(skeleton.path().join(name)).context("the root cannot be made")?;
        }
        let network = match egress {
            true => Some(Arc::new(Network::start(Egress::default(), &parent).await?)),
            false => None,
        };
        let stage = tempfile::tempdir().context("no temporary directory")?;
        let criu = args.criu.parent().map(Path::to_owned).unwrap_or_default();
        Ok(Self {
            cgroups,
            parent,
            zygote: Arc::new(Zygote::new(
                Programs::find(args.bin.as_deref())?.init(),
                stage.path().to_owned(),
                criu,
            )),
            _stage: stage,
            // Nothing is restored in them.
            prestart: Prestart {
                dirs: std::env::temp_dir(),
                log_level: 1,
            },
            network,
            skeleton,
            made: AtomicU64::new(0),
        })
    }

    /// The root of sandboxes.
    pub(super) fn root(&self) -> &Path {
        self.skeleton.path()
    }

    /// Its directories, and those of functions.
    pub(super) fn layers(&self) -> Layers {
        Layers {
            rootfs: self.root().to_owned(),
            app: self.root().join("etc"),
        }
    }

    /// What sandboxes are furnished with.
    pub(super) fn setup(&self) -> Setup {
        Setup {
            hostname: "bench".to_owned(),
            tmp_bytes: 16 << 20,
            shm_bytes: 16 << 20,
            root_bytes: None,
            resolv_conf: None,
            secrets: false,
            machine: Machine {
                memory_bytes: 128 << 20,
                processors: 1,
            },
        }
    }

    /// A name that no group has had.
    pub(super) fn name(&self, kind: &str) -> String {
        format!("{kind}-{}", self.made.fetch_add(1, Ordering::Relaxed))
    }

    /// Makes one sandbox, from nothing to gone.
    pub(super) async fn once(&self, kind: SandboxKind) -> Result<Steps> {
        let mut steps = Steps::default();
        let mut clock = Clock(Instant::now());
        let name = self.name("bench");
        let mut group = match kind {
            SandboxKind::Lean => self.cgroups.create(&name, LIMITS)?,
            SandboxKind::Again | SandboxKind::Whole => self.cgroups.ready(&name, LIMITS)?.0,
        };
        steps.group = clock.lap();
        let sandbox = Sandbox::create(&self.zygote, group.procs_files()).await?;
        steps.namespaces = clock.lap();
        let mut waiting = None;
        if kind == SandboxKind::Whole {
            let (session, theirs) = Session::pair()?;
            let group_procs = group.function_procs()?;
            let purpose = CriuUse::Restore {
                group_procs: &group_procs,
            };
            let fds: [&OwnedFd; 1] = [&theirs];
            sandbox.start_criu(&fds, purpose).await?;
            drop(theirs);
            let answered = tokio::task::spawn_blocking(move || session.version(CRIU_LIMIT).map(|_| session));
            waiting = Some(answered.await??);
            steps.criu = clock.lap();
            if let Some(network) = &self.network {
                network.attach(sandbox.network()).await?;
            }
            steps.link = clock.lap();
            self.cgroups.assign(&mut group, &self.name("used"), LIMITS)?;
            steps.assign = clock.lap();
        }
        sandbox.furnish(self.layers(), self.setup()).await?;
        steps.furnish = clock.lap();
        let ending = Arc::clone(&sandbox);
        tokio::task::spawn_blocking(move || ending.end()).await?;
        steps.end = clock.lap();
        // Not earlier: it would complain of a worker that is gone.
        drop((waiting, sandbox));
        match kind {
            SandboxKind::Lean => group.remove()?,
            // Kept for the next, if it is clean.
            SandboxKind::Again | SandboxKind::Whole => drop(group),
        }
        steps.remove = clock.lap();
        Ok(steps)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.cgroups.close();
        // Leftovers of an error in between.
        if let Err(e) = self.cgroups.sweep() {
            eprintln!("control groups are left: {e}");
        }
        if let Some(network) = &self.network {
            network.stop();
        }
        if let Err(e) = self.cgroups.remove_parent() {
            eprintln!("control group {} is left: {e}", self.parent);
        }
    }
}

/// Time from lap to lap.
pub(super) struct Clock(pub(super) Instant);

impl Clock {
    /// Milliseconds since the last lap.
    pub(super) fn lap(&mut self) -> f64 {
        let now = Instant::now();
        let taken = now.duration_since(self.0).as_secs_f64() * 1e3;
        self.0 = now;
        taken
    }
}

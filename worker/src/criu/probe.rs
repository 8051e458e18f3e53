//! CRIU's probe of the kernel, which takes about 30 ms and has the same result until the next boot.
//!
//! A worker runs it at its start, in a sandbox that no function sees. So no start waits for it, and all CRIUs of the
//! pool are prestarted with its result. If that failed, the first start runs the probe. Another probe runs outside, for
//! CRIUs that dump: it finds more than one in a sandbox does.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rekindle_criu::{PROBE_FILE, PROBE_LOG, ScratchDir, Session, cause_in};
use rekindle_init::protocol::{Layers, Machine, Setup};
use rekindle_wire::ApiError;

use super::installation::Criu;
use crate::errors::unavailable;
use crate::host::sandbox::dumper::Dumper;
use crate::host::sandbox::{CriuUse, Sandbox, maker};

/// How long CRIU may take to probe the kernel.
const PROBE_LIMIT: Duration = Duration::from_secs(10);
/// How long the pool waits for the probe at the worker's start.
const AHEAD_LIMIT: Duration = Duration::from_secs(5);
/// The mount points that a sandbox's root filesystem must have.
const MOUNT_POINTS: [&str; 6] = ["app", "dev", "proc", "run", "sys", "tmp"];
/// Size of its /tmp and /dev/shm, which stay empty.
const SMALL: u64 = 1 << 20;

/// Runs the probes ahead of all starts. Failures and time-outs are logged.
pub(crate) async fn ahead(criu: &Criu) {
    let _alone = criu.probing.lock().await;
    let both = async {
        in_a_sandbox_of_its_own(criu).await?;
        outside(criu).await.map(drop)
    };
    let error = match tokio::time::timeout(AHEAD_LIMIT, both).await {
        Ok(Ok(())) => return,
        Ok(Err(e)) => e.message,
        Err(_) => format!("it took more than {} s", AHEAD_LIMIT.as_secs()),
    };
    tracing::warn!(error, "the kernel was not probed ahead: the first start does it");
}

/// Gives the probe's result to a furnished sandbox, or runs the probe there if there is no result yet. Callers that
/// come while it runs wait for it.
pub(crate) async fn give_or_make(criu: &Criu, name: &str, sandbox: &Sandbox) -> Result<(), ApiError> {
    let _alone = criu.probing.lock().await;
    match criu.probe() {
        Some(probe) => give(sandbox, &probe).await,
        None => make(criu, name, sandbox).await,
    }
}

async fn in_a_sandbox_of_its_own(criu: &Criu) -> Result<(), ApiError> {
    let rootfs = Rootfs::make(criu.settings.run_dir.join("probe-root"))
        .map_err(|e| unavailable("lay out a place to probe the kernel from", &e))?;
    let empty = criu
        .pool
        .maker()
        .make()
        .await
        .map_err(|e| unavailable("get a sandbox", &e))?;
    let layers = Layers {
        rootfs: rootfs.0.clone(),
        app: rootfs.0.join("app"),
    };
    let setup = Setup {
        hostname: "probe".to_owned(),
        tmp_bytes: SMALL,
        shm_bytes: SMALL,
        root_bytes: None,
        resolv_conf: None,
        secrets: false,
        machine: Machine {
            memory_bytes: SMALL,
            processors: 1,
        },
    };
    let made = match empty.sandbox.furnish(layers, setup).await {
        Ok(()) => make(criu, "ahead", &empty.sandbox).await,
        Err(e) => Err(unavailable("furnish the sandbox", &e)),
    };
    maker::end(empty).await;
    made
}

/// An empty root filesystem, removed on drop.
struct Rootfs(PathBuf);

impl Rootfs {
    fn make(path: PathBuf) -> io::Result<Self> {
        let made = Self(path);
        for name in MOUNT_POINTS {
            fs::create_dir_all(made.0.join(name))?;
        }
        Ok(made)
    }
}

impl Drop for Rootfs {
    fn drop(&mut self) {
        if let Err(e) = fs::remove_dir_all(&self.0) {
            tracing::warn!(
                dir = %self.0.display(), error = %e,
                "cannot remove the place that the kernel was probed from"
            );
        }
    }
}

/// Runs CRIU's probe in this sandbox, and keeps the result for all others. The sandbox is furnished, and nothing of a
/// function runs in it yet. `name` is the name of a directory for it.
async fn make(criu: &Criu, name: &str, sandbox: &Sandbox) -> Result<(), ApiError> {
    let failed = |e: &dyn std::error::Error| unavailable("have criu probe the kernel", e);
    let dir = criu.scratch(&format!("probe-{name}"));
    // The files that CRIU writes there are not used.
    let dir = ScratchDir::make(dir).map_err(|e| failed(&e))?;
    dir.give_to(sandbox.host_id(0)).map_err(|e| failed(&e))?;
    let opened = fs::File::open(dir.path()).map_err(|e| failed(&e))?;
    let (session, theirs) = Session::pair().map_err(|e| failed(&e))?;
    sandbox
        .start_criu(&[&theirs, &OwnedFd::from(opened)], CriuUse::Alone)
        .await
        .map_err(|e| failed(&e))?;
    drop(theirs);
    let probed = tokio::task::spawn_blocking(move || session.probe(PROBE_LIMIT)).await;
    drop(dir);
    let (major, minor, patch) = probed.map_err(|e| failed(&e))?.map_err(|e| failed(&e))?;
    let probe = sandbox.read_probe().await.map_err(|e| failed(&e))?;
    criu.keep_probe(&probe, format!("{major}.{minor}.{patch}"));
    // The kept result may contain more than what CRIU has found.
    match criu.probe() {
        Some(probe) => give(sandbox, &probe).await,
        None => Ok(()),
    }
}

/// Puts the probe of CRIUs that dump into the directory that one is to work in. Runs the probe if there is no result
/// yet.
pub(crate) async fn give_outside(criu: &Criu, dir: &Path) -> Result<(), ApiError> {
    let probe = match criu.dump_probe() {
        Some(probe) => probe,
        None => {
            let _alone = criu.probing.lock().await;
            match criu.dump_probe() {
                Some(probe) => probe,
                None => outside(criu).await?,
            }
        }
    };
    fs::write(dir.join(PROBE_FILE), &*probe).map_err(|e| unavailable("give criu its probe", &e))
}

/// Runs CRIU's probe outside all sandboxes, and keeps the result.
async fn outside(criu: &Criu) -> Result<Arc<[u8]>, ApiError> {
    let failed = |e: &dyn std::error::Error| unavailable("have criu probe the kernel for checkpoints", e);
    let dir = ScratchDir::make(criu.scratch("probe-outside")).map_err(|e| failed(&e))?;
    let opened = OwnedFd::from(fs::File::open(dir.path()).map_err(|e| failed(&e))?);
    let dumper = Dumper::probe(&criu.zygote, &opened).await.map_err(|e| failed(&e))?;
    let probed = tokio::task::spawn_blocking(move || dumper.session.probe(PROBE_LIMIT));
    let (major, minor, patch) = probed.await.map_err(|e| failed(&e))?.map_err(|e| failed(&e))?;
    let probe = fs::read(dir.path().join(PROBE_FILE)).map_err(|e| {
        let error = failed(&e);
        let log = cause_in(&dir.path().join(PROBE_LOG));
        ApiError::new(error.code, format!("{}{log}", error.message))
    })?;
    Ok(criu.keep_dump_probe(&probe, &format!("{major}.{minor}.{patch}")))
}

/// Gives the sandbox the result of CRIU's kernel probe.
pub(crate) async fn give(sandbox: &Sandbox, probe: &OwnedFd) -> Result<(), ApiError> {
    let written = sandbox.write_probe(probe).await;
    written.map_err(|e| unavailable("give criu its probe", &e))
}

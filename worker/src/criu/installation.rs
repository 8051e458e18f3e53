//! CRIU on this host: how it is run, and what it has found out about the kernel.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::memfd::{MFdFlags, memfd_create};
use parking_lot::Mutex;

use super::tracking::{Tracking, with_tracking};
use crate::host::sandbox::Zygote;
use crate::host::sandbox::pool::SandboxPool;

/// How CRIU is run.
#[derive(Debug, Clone)]
pub struct CriuSettings {
    /// Its log level, 0 to 4.
    pub log_level: i32,
    /// How long a restore may take.
    pub restore_limit: Duration,
    /// How long a checkpoint may take.
    pub dump_limit: Duration,
    /// Where it works: a tmpfs of this process alone.
    pub run_dir: PathBuf,
    /// Where the logs of restores are kept, if the log level asks for it.
    pub kept_logs: PathBuf,
}

/// CRIU on this host.
pub struct Criu {
    pub(crate) settings: CriuSettings,
    pub(super) pool: Arc<SandboxPool>,
    pub(super) zygote: Arc<Zygote>,
    probe: Mutex<Option<Probe>>,
    dump_probe: Mutex<Option<DumpProbe>>,
    /// Held by whoever makes one of them.
    pub(super) probing: tokio::sync::Mutex<()>,
}

struct Probe {
    file: Arc<OwnedFd>,
    version: String,
}

/// The kernel probe of CRIUs that dump, which run outside the sandbox.
struct DumpProbe {
    bytes: Arc<[u8]>,
    tracking: Tracking,
}

impl Criu {
    /// Creates it without any probe.
    pub fn new(settings: CriuSettings, pool: Arc<SandboxPool>, zygote: Arc<Zygote>) -> Self {
        Self {
            settings,
            pool,
            zygote,
            probe: Mutex::default(),
            dump_probe: Mutex::default(),
            probing: tokio::sync::Mutex::default(),
        }
    }

    /// Returns the directory of this name in which a CRIU is to work.
    pub(crate) fn scratch(&self, name: &str) -> PathBuf {
        self.settings.run_dir.join("restores").join(name)
    }

    /// Returns CRIU's kernel probe, to be put into each sandbox: a descriptor that is read from its start.
    pub fn probe(&self) -> Option<Arc<OwnedFd>> {
        self.probe.lock().as_ref().map(|probe| Arc::clone(&probe.file))
    }

    /// Returns CRIU's version, once it has run.
    pub fn version(&self) -> String {
        let probe = self.probe.lock();
        probe
            .as_ref()
            .map_or_else(|| "unknown".to_owned(), |p| p.version.clone())
    }

    /// Returns how CRIU learns which pages have changed, once a CRIU that dumps has run.
    pub fn tracking(&self) -> Tracking {
        self.dump_probe.lock().as_ref().map_or(Tracking::None, |p| p.tracking)
    }

    /// Returns the kernel probe of CRIUs that dump, once one has run.
    pub(super) fn dump_probe(&self) -> Option<Arc<[u8]>> {
        self.dump_probe.lock().as_ref().map(|probe| Arc::clone(&probe.bytes))
    }

    /// Keeps the kernel probe of a CRIU that dumps.
    pub(super) fn keep_dump_probe(&self, bytes: &[u8], version: &str) -> Arc<[u8]> {
        let (bytes, tracking) = with_tracking(bytes, version);
        let bytes: Arc<[u8]> = bytes.into();
        *self.dump_probe.lock() = Some(DumpProbe {
            bytes: Arc::clone(&bytes),
            tracking,
        });
        bytes
    }

    /// Keeps CRIU's kernel probe from a sandbox in which CRIU ran.
    pub(super) fn keep_probe(&self, bytes: &[u8], version: String) {
        let made = memfd_create("criu.kdat", MFdFlags::MFD_CLOEXEC);
        let kept = made.map_err(std::io::Error::from).and_then(|fd| {
            let mut file = File::from(fd);
            file.write_all(bytes)?;
            Ok(Arc::new(OwnedFd::from(file)))
        });
        match kept {
            Ok(file) => {
                self.pool.maker().prestart_with(Arc::clone(&file));
                *self.probe.lock() = Some(Probe { file, version });
            }
            Err(e) => tracing::warn!(error = %e, "cannot keep criu's kernel probe; restores take longer"),
        }
    }
}

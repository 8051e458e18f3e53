//! A CRIU that was ordered ahead to restore one process, from a directory that has no images yet. It has done all the
//! work that precedes the first image:
//!
//! ```text
//! worker                          criu
//!   │── restore from DIR ────────>│  looks at the kernel and the processor, 1 ms
//!   │                       DIR/inventory.img, a FIFO: waits for its first byte
//!   │        (a function is to be restored)
//!   │── links its images into DIR,
//!   │── writes the inventory ────>│  continues as usual
//! ```

use std::fs::{File, OpenOptions, Permissions, set_permissions};
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::ScratchDir;
use crate::descriptors::{OUTPUT_FDS, OUTPUT_PIPES, PRESTART_IMAGES_FD, own_descriptor, pipe_key};
use crate::session::{InheritFd, RestoreOrder, Session};
use crate::stage::{CriuError, Stage, StageError};

/// The first image that CRIU opens.
const INVENTORY: &str = "inventory.img";
/// How long CRIU may take to reach the inventory, and the pause between checks.
const PRESTART_LIMIT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_micros(300);

/// Why a CRIU is not prestarted.
#[derive(Debug, thiserror::Error)]
pub enum PrestartError {
    /// The directory, or the FIFO in it, cannot be created.
    #[error("lay out {}", .0.display())]
    Directory(PathBuf, #[source] std::io::Error),
    /// CRIU does not accept the order.
    #[error("order a restore ahead")]
    Order(#[source] CriuError),
    /// CRIU does not reach its images.
    #[error("criu did not open its inventory within {} s", PRESTART_LIMIT.as_secs())]
    Silent,
    /// CRIU has given up.
    #[error("criu gave up before it opened its inventory")]
    GaveUp,
}

/// How a CRIU is prestarted: the same for all of a worker's sandboxes.
#[derive(Debug, Clone)]
pub struct Prestart {
    /// The parent of the directories.
    pub dirs: PathBuf,
    /// CRIU's log level, 0 to 4.
    pub log_level: i32,
}

/// The directory of a CRIU that is to be prestarted.
#[derive(Debug)]
pub struct PrestartDir {
    images: ScratchDir,
    /// Becomes a descriptor of CRIU, after its session and the output pipes.
    pub opened: OwnedFd,
}

impl Prestart {
    /// Creates the directory of this name, for a CRIU that runs as this user of the host.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn make_dir(&self, name: &str, owner: u32) -> Result<PrestartDir, PrestartError> {
        let dir = self.dirs.join(name);
        let failed = |e| PrestartError::Directory(dir.clone(), e);
        let images = ScratchDir::make(dir.clone()).map_err(failed)?;
        images.give_to(owner).map_err(failed)?;
        let inventory = dir.join(INVENTORY);
        mkfifo(&inventory, Mode::S_IRUSR | Mode::S_IWUSR).map_err(|e| failed(e.into()))?;
        // CRIU only reads it, and can reach no other place on the host.
        set_permissions(&inventory, Permissions::from_mode(0o644)).map_err(failed)?;
        let opened = File::open(&dir).map_err(failed)?.into();
        Ok(PrestartDir { images, opened })
    }

    /// Runs CRIU, which has [`PrestartDir::opened`], as far as it can go. Blocks for a millisecond.
    ///
    /// # Errors
    /// See [`PrestartError`].
    pub fn run(&self, session: &Session, dir: PrestartDir) -> Result<AwaitedImages, PrestartError> {
        let inherit = std::iter::zip(OUTPUT_PIPES, OUTPUT_FDS).map(|(number, fd)| InheritFd {
            key: pipe_key(number),
            fd,
        });
        let order = RestoreOrder {
            images_dir: own_descriptor(PRESTART_IMAGES_FD),
            inherit: inherit.collect(),
            log_level: self.log_level,
            limit: PRESTART_LIMIT,
        };
        session.order_restore(&order).map_err(PrestartError::Order)?;
        let PrestartDir { images, opened: _ } = dir;
        let path = images.path().join(INVENTORY);
        let deadline = Instant::now() + PRESTART_LIMIT;
        loop {
            // Opening the FIFO fails as long as nobody reads it.
            match OpenOptions::new()
                .write(true)
                .custom_flags(libc::O_NONBLOCK)
                .open(&path)
            {
                Ok(inventory) => return Ok(AwaitedImages { inventory, images }),
                Err(e) if e.raw_os_error() != Some(Errno::ENXIO as i32) => {
                    return Err(PrestartError::Directory(path, e));
                }
                Err(_) if session.has_spoken() => return Err(PrestartError::GaveUp),
                Err(_) if Instant::now() > deadline => return Err(PrestartError::Silent),
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    }
}

/// What a prestarted CRIU waits for. Its drop makes CRIU give up.
#[derive(Debug)]
pub struct AwaitedImages {
    inventory: File,
    images: ScratchDir,
}

impl AwaitedImages {
    /// Puts these images in place, except the first. Returns the restore, which may then take `limit`, and the
    /// directory where CRIU reads and writes.
    ///
    /// # Errors
    /// If an image cannot be linked or read.
    pub fn fill(
        self,
        session: Session,
        images: &Path,
        limit: Duration,
    ) -> std::io::Result<(PendingRestore, ScratchDir)> {
        self.images.link_but(images, INVENTORY)?;
        let inventory = std::fs::read(images.join(INVENTORY))?;
        let restore = PendingRestore::Prestarted {
            session,
            fifo: self.inventory,
            inventory,
            limit,
        };
        Ok((restore, self.images))
    }
}

/// A restore that is ready to run.
#[derive(Debug)]
pub enum PendingRestore {
    /// The order is yet to be given to CRIU.
    Ordered(Session, RestoreOrder),
    /// CRIU has the order, and waits for its inventory.
    Prestarted {
        /// The session to control CRIU.
        session: Session,
        /// The FIFO that CRIU reads.
        fifo: File,
        /// What is written to it.
        inventory: Vec<u8>,
        /// How long CRIU may take from then on.
        limit: Duration,
    },
}

impl PendingRestore {
    /// Whether CRIU was prestarted. It then finds its images without the descriptors that init holds.
    pub fn is_prestarted(&self) -> bool {
        matches!(self, Self::Prestarted { .. })
    }

    /// Runs the restore, as [`Session::restore`] does.
    ///
    /// # Errors
    /// As for [`Session::restore`].
    pub fn run(self, at: impl FnMut(&Stage) -> Result<(), StageError>) -> Result<i32, CriuError> {
        match self {
            Self::Ordered(session, order) => session.restore(&order, at),
            Self::Prestarted {
                session,
                mut fifo,
                inventory,
                limit,
            } => {
                fifo.write_all(&inventory).map_err(CriuError::Died)?;
                drop(fifo);
                session.hear_restored(limit, at)
            }
        }
    }
}

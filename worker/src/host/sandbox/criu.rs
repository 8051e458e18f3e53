//! The CRIU that waits in an empty sandbox. It waits for any order, or it is prestarted, if everything it asks the
//! kernel for is known. A prestarted CRIU was ordered ahead to restore one process from a directory that has no images
//! yet. It has done all the work that precedes the first image:
//!
//! ```text
//! worker                                   criu
//!   │── restore from DIR ─────────────────>│  looks at the kernel and the processor, 1 ms
//!   │                       DIR/inventory.img, a FIFO: waits for its first byte
//!   │        (a function is to be restored)
//!   │── links its images into DIR,
//!   │── writes the inventory ─────────────>│  continues as usual
//! ```

use std::fs::{DirBuilder, File, OpenOptions, Permissions, set_permissions};
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use rekindle_criu::{CriuError, InheritFd, RestoreOrder, Session, Stage, own_descriptor};
use rekindle_pager::Ancestor;

use super::Sandbox;
use super::pool::{OUTPUT_FDS, OUTPUT_PIPES};

/// The first image that CRIU opens.
const INVENTORY: &str = "inventory.img";
/// Descriptor of the image directory in a CRIU that is to be prestarted.
const IMAGES_FD: i32 = 6;
/// How long CRIU may take to reach the inventory, and the pause between checks.
const PRIME_LIMIT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_micros(300);
/// How long CRIU may take to end when nothing is asked of it.
const DISMISS_LIMIT: Duration = Duration::from_secs(5);

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
    #[error("criu did not open its inventory within {} s", PRIME_LIMIT.as_secs())]
    Silent,
    /// CRIU has given up.
    #[error("criu gave up before it opened its inventory")]
    GaveUp,
}

/// A directory for one restore: the images, and what CRIU writes. Removed on drop with its content.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Creates an empty directory.
    ///
    /// # Errors
    /// Returns an error when it cannot be created.
    pub fn make(dir: PathBuf) -> std::io::Result<Self> {
        DirBuilder::new().mode(0o700).create(&dir)?;
        Ok(Self(dir))
    }

    /// Gives the directory to the root of a sandbox, whose CRIU writes its log there.
    ///
    /// # Errors
    /// Returns an error when the kernel refuses.
    pub fn give_to(&self, sandbox: &Sandbox) -> std::io::Result<()> {
        let root = sandbox.host_id(0);
        chown(&self.0, Some(root), Some(root))
    }

    /// Creates hard links to these images.
    ///
    /// # Errors
    /// Returns an error when one cannot be linked.
    pub fn link(&self, images: &Path) -> std::io::Result<()> {
        self.link_but(images, "")
    }

    /// Creates hard links to these images, except the one with this name.
    fn link_but(&self, images: &Path, without: &str) -> std::io::Result<()> {
        for entry in std::fs::read_dir(images)? {
            let entry = entry?;
            if entry.file_name() != without {
                std::fs::hard_link(entry.path(), self.0.join(entry.file_name()))?;
            }
        }
        Ok(())
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(dir = %self.0.display(), error = %e, "cannot remove a restore's directory");
        }
    }
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
pub(super) struct Place {
    images: Scratch,
    /// Becomes CRIU's descriptor [`IMAGES_FD`].
    pub(super) opened: OwnedFd,
}

impl Prestart {
    pub(super) fn place(&self, name: &str, sandbox: &Sandbox) -> Result<Place, PrestartError> {
        let dir = self.dirs.join(name);
        let failed = |e| PrestartError::Directory(dir.clone(), e);
        let images = Scratch::make(dir.clone()).map_err(failed)?;
        images.give_to(sandbox).map_err(failed)?;
        let inventory = dir.join(INVENTORY);
        mkfifo(&inventory, Mode::S_IRUSR | Mode::S_IWUSR).map_err(|e| failed(e.into()))?;
        // CRIU only reads it, and can reach no other place on the host.
        set_permissions(&inventory, Permissions::from_mode(0o644)).map_err(failed)?;
        let opened = File::open(&dir).map_err(failed)?.into();
        Ok(Place { images, opened })
    }

    /// Runs CRIU, which has [`Place::opened`], as far as it can go. Blocks for a millisecond.
    pub(super) fn run(&self, session: &Session, place: Place) -> Result<Images, PrestartError> {
        let inherit = std::iter::zip(OUTPUT_PIPES, OUTPUT_FDS).map(|(number, fd)| InheritFd {
            key: pipe_key(number),
            fd,
        });
        let order = RestoreOrder {
            images_dir: own_descriptor(IMAGES_FD),
            inherit: inherit.collect(),
            log_level: self.log_level,
            limit: PRIME_LIMIT,
        };
        session.order_restore(&order).map_err(PrestartError::Order)?;
        let Place { images, opened: _ } = place;
        let path = images.path().join(INVENTORY);
        let deadline = Instant::now() + PRIME_LIMIT;
        loop {
            // Opening the FIFO fails as long as nobody reads it.
            match OpenOptions::new()
                .write(true)
                .custom_flags(libc::O_NONBLOCK)
                .open(&path)
            {
                Ok(inventory) => return Ok(Images { inventory, images }),
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

/// Returns CRIU's name for the pipe with this number.
pub fn pipe_key(number: u32) -> String {
    format!("pipe:[{number}]")
}

/// What a prestarted CRIU waits for.
#[derive(Debug)]
pub struct Images {
    /// Closing it makes CRIU give up.
    inventory: File,
    images: Scratch,
}

/// A CRIU that waits.
#[derive(Debug)]
pub struct WaitingCriu {
    /// The session to control it.
    pub session: Session,
    /// Its memory, from which a pager gets the memory of what it restores, if the kernel allows that. Must be dropped
    /// if no pager uses it.
    pub ancestor: Option<Ancestor>,
    /// The images that it waits for, if it is prestarted.
    pub prestarted: Option<Images>,
}

impl WaitingCriu {
    /// Dismisses it. Blocks until one that is not prestarted has replied.
    pub fn dismiss(self) {
        // It no longer forks for anybody.
        drop(self.ancestor);
        match self.prestarted {
            // It then finds its inventory empty.
            Some(images) => drop(images),
            None => {
                if let Err(e) = self.session.dismiss(DISMISS_LIMIT) {
                    tracing::debug!(error = &e as &dyn std::error::Error, "criu ended in another way");
                }
            }
        }
    }
}

/// A restore whose stages are reported.
pub(crate) enum Restore {
    /// The order is yet to be given to CRIU.
    Ordered(Session, RestoreOrder),
    /// A prestarted CRIU: the inventory that it waits for, and how long it may take from then on.
    Prestarted(Session, File, Vec<u8>, Duration),
}

impl Restore {
    /// Returns whether CRIU finds its images without the descriptors that init holds.
    pub(crate) fn has_images(&self) -> bool {
        matches!(self, Self::Prestarted(..))
    }

    /// Runs the restore, as [`Session::restore`] does. Blocks.
    pub(crate) fn run(
        self,
        at: impl FnMut(&Stage) -> Result<(), Box<dyn std::error::Error + Send + Sync>>,
    ) -> Result<i32, CriuError> {
        match self {
            Self::Ordered(session, order) => session.restore(&order, at),
            Self::Prestarted(session, mut fifo, inventory, limit) => {
                fifo.write_all(&inventory).map_err(CriuError::Died)?;
                drop(fifo);
                session.hear_restored(limit, at)
            }
        }
    }
}

impl Images {
    /// Puts these images in place, except the first.
    pub(crate) fn fill(self, images: &Path) -> std::io::Result<Filled> {
        self.images.link_but(images, INVENTORY)?;
        Ok(Filled {
            inventory: std::fs::read(images.join(INVENTORY))?,
            fifo: self.inventory,
            scratch: self.images,
        })
    }
}

/// Images in a prestarted CRIU's directory.
pub(crate) struct Filled {
    /// The inventory that CRIU waits for, and the FIFO to write it to.
    pub(crate) inventory: Vec<u8>,
    pub(crate) fifo: File,
    pub(crate) scratch: Scratch,
}

//! System V IPC and POSIX message queues. They are in the sandbox's IPC namespace, which CRIU does not dump: every copy
//! would silently lack them. So a function that has any is not checkpointed.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

/// Temporary mount point of the file system of message queues, below a directory that only root may enter.
const QUEUES: &str = "/run/.queues";
/// Directory of the kernel's tables of System V objects, in procfs.
const TABLES: &str = "sysvipc";

/// A kind of System V object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Shared memory.
    Memory,
    /// A set of semaphores.
    Semaphores,
    /// A message queue.
    Messages,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Memory, Self::Semaphores, Self::Messages];

    /// The kernel's table of this kind.
    fn table(self) -> &'static str {
        match self {
            Self::Memory => "shm",
            Self::Semaphores => "sem",
            Self::Messages => "msg",
        }
    }

    /// An alternative that is part of a snapshot.
    fn alternative(self) -> &'static str {
        match self {
            Self::Memory => "memory that is shared by mmap, such as a file in /dev/shm (shm_open)",
            Self::Semaphores => "POSIX semaphores (sem_open) or a file lock",
            Self::Messages => "a pipe or a UNIX socket",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "shared memory segment",
            Self::Semaphores => "semaphore set",
            Self::Messages => "message queue",
        })
    }
}

/// Why no checkpoint is possible.
#[derive(Debug, thiserror::Error)]
pub enum IpcError {
    /// A System V object would be missing.
    #[error(
        "the System V {kind} with {}, id {id}, would be missing in the snapshot; remove it before the snapshot \
         (in a before-snapshot hook), use {} instead, or set snapshot = false in fn.toml",
        shown(*.key), .kind.alternative()
    )]
    SystemV {
        /// Kind of the object.
        kind: Kind,
        /// Its key, 0 if it is private.
        key: i32,
        /// Its id, which `ipcrm` takes.
        id: u32,
    },
    /// A message queue would be missing.
    #[error(
        "the POSIX message queue /{name} would be missing in the snapshot; remove it before the snapshot (in a \
         before-snapshot hook), use {} instead, or set snapshot = false in fn.toml",
        Kind::Messages.alternative()
    )]
    Queue {
        /// Its name, without the slash.
        name: String,
    },
    /// The objects cannot be listed.
    #[error("look for IPC objects in {}", .0.display())]
    Read(PathBuf, #[source] io::Error),
}

impl IpcError {
    /// Whether the function has such an object.
    pub fn is_of_function(&self) -> bool {
        !matches!(self, Self::Read(..))
    }
}

fn shown(key: i32) -> String {
    match key {
        0 => "no key (IPC_PRIVATE)".to_owned(),
        key => format!("key {key:#x}"),
    }
}

/// Rejects a checkpoint if this process's IPC namespace contains an object. `proc` is the mount point of a procfs.
///
/// # Errors
/// The first object found.
pub fn refuse(proc: &Path) -> Result<(), IpcError> {
    system_v(&proc.join(TABLES))?;
    let queues = Path::new(QUEUES);
    let failed = |e| IpcError::Read(queues.to_owned(), e);
    // Left by an earlier check that failed.
    match fs::create_dir(queues) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(failed(e)),
        _ => {}
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    match mount(Some("mqueue"), queues, Some("mqueue"), flags, None::<&str>) {
        Ok(()) => {}
        // A kernel without message queues.
        Err(nix::Error::ENODEV) => return Ok(()),
        Err(e) => return Err(failed(e.into())),
    }
    let found = no_queue(queues);
    umount2(queues, MntFlags::MNT_DETACH).map_err(|e| failed(e.into()))?;
    found
}

/// A kernel without System V IPC has no tables.
fn system_v(tables: &Path) -> Result<(), IpcError> {
    for kind in Kind::ALL {
        let path = tables.join(kind.table());
        let table = match fs::read_to_string(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            read => read.map_err(|e| IpcError::Read(path, e))?,
        };
        // After the header, each line starts with the key and the id.
        if let Some(line) = table.lines().nth(1) {
            let mut words = line.split_whitespace();
            let mut number = || words.next().and_then(|word| word.parse::<i64>().ok()).unwrap_or(0);
            let (key, id) = (number(), number());
            return Err(IpcError::SystemV {
                kind,
                key: i32::try_from(key).unwrap_or(0),
                id: u32::try_from(id).unwrap_or(0),
            });
        }
    }
    Ok(())
}

fn no_queue(queues: &Path) -> Result<(), IpcError> {
    let failed = |e| IpcError::Read(queues.to_owned(), e);
    match fs::read_dir(queues).map_err(failed)?.next() {
        None => Ok(()),
        Some(queue) => Err(IpcError::Queue {
            name: queue.map_err(failed)?.file_name().to_string_lossy().into_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "       key      semid perms      nsems   uid   gid  cuid  cgid      otime      ctime\n";

    fn error_text(of: Result<(), IpcError>) -> String {
        of.unwrap_err().to_string()
    }

    #[test]
    fn an_object_is_told_by_kind_key_and_id_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        system_v(dir.path()).unwrap();
        for kind in Kind::ALL {
            fs::write(dir.path().join(kind.table()), HEADER).unwrap();
        }
        system_v(dir.path()).unwrap();
        let line = "      4660      32769   600          3  1000  1000  1000  1000          0 1764056000\n";
        fs::write(dir.path().join("sem"), format!("{HEADER}{line}")).unwrap();
        let told_of = error_text(system_v(dir.path()));
        assert!(told_of.contains("semaphore set with key 0x1234, id 32769"), "{told_of}");
        assert!(told_of.contains("snapshot = false"), "{told_of}");
        let line = "         0          7   600  4096 1 1 1 0 0 0 0 0 0 0 0 0\n";
        fs::write(dir.path().join("shm"), format!("{HEADER}{line}")).unwrap();
        let told_of = error_text(system_v(dir.path()));
        assert!(
            told_of.contains("shared memory segment with no key (IPC_PRIVATE), id 7"),
            "{told_of}"
        );
        fs::write(dir.path().join("shm"), format!("{HEADER}-559038737 1 600\n")).unwrap();
        assert!(error_text(system_v(dir.path())).contains("key 0xdeadbeef, id 1"));
    }

    #[test]
    fn a_queue_is_told_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        no_queue(dir.path()).unwrap();
        fs::write(dir.path().join("jobs"), "").unwrap();
        let told = error_text(no_queue(dir.path()));
        assert!(told.contains("message queue /jobs"), "{told}");
    }
}

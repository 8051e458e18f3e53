//! Answers the kernel's questions about a mounted layer. One thread per mount reads them. A read of bytes that are not
//! on this host waits in a task, for a limited time, and then fails.
//!
//! A function chooses names and offsets, which the kernel checks and puts into requests of its own. It can have as many
//! reads waiting as it has threads.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rekindle_init::causes::chain;
use rekindle_snapshotter::layer::PIECE;
use tokio::runtime::Handle;

use super::content::Content;
use super::counts::FetchReason;
use super::protocol::{self, FuseOperation, FuseRequest, REQUEST_MAX};
use super::tree::{Node, Tree};

/// How long a read may wait for the store. A thread that waits cannot be frozen or killed.
const READ_LIMIT: Duration = Duration::from_secs(10);
/// Pause before a failed fetch that somebody waits for is tried again.
const AGAIN: Duration = Duration::from_millis(250);
/// How much more of a file is fetched when it is read in order.
const AHEAD: u64 = 8 * PIECE;
/// Maximum number of files whose last reads are remembered.
const FOLLOWED_MAX: usize = 1024;
/// Minimum time between two log lines about failed reads of a layer.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// What a mount is answered from.
pub(super) struct Server {
    pub(super) tree: Tree,
    pub(super) content: Arc<Content>,
    /// The kernel's end.
    pub(super) device: File,
    pub(super) runtime: Handle,
    /// Where the last read of a file ended.
    pub(super) followed: Mutex<HashMap<u64, u64>>,
}

/// A read that waits for its bytes.
struct PendingRead {
    unique: u64,
    node: u64,
    /// Where the bytes are in the tar.
    offset: u64,
    length: usize,
    /// What is fetched.
    until: u64,
}

enum Reply {
    Now(Vec<u8>),
    Later(PendingRead),
    None,
}

impl Server {
    /// Answers until the mount is gone.
    pub(super) fn run(self: &Arc<Self>) {
        let mut room = vec![0; REQUEST_MAX];
        loop {
            let length = match (&self.device).read(&mut room) {
                Ok(length) => length,
                // The request that was to be read has been interrupted.
                Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::ENOENT)) => continue,
                Err(e) => {
                    if e.raw_os_error() != Some(libc::ENODEV) {
                        tracing::warn!(layer = %self.content.digest(), error = %e, "a layer's mount is not answered");
                    }
                    return;
                }
            };
            let Some(request) = protocol::parse(&room[..length]) else {
                continue;
            };
            match self.answer(&request) {
                Reply::Now(bytes) => self.send(&bytes),
                Reply::Later(pending) => drop(self.runtime.spawn(Arc::clone(self).wait(pending))),
                Reply::None => {}
            }
        }
    }

    fn send(&self, bytes: &[u8]) {
        // An error means that nobody waits for it any more.
        let _ = (&self.device).write(bytes);
    }

    fn answer(&self, request: &FuseRequest<'_>) -> Reply {
        let unique = request.unique;
        let answer = match request.ask {
            FuseOperation::Nothing => return Reply::None,
            // The kernel asks no more then.
            FuseOperation::Extended(..) | FuseOperation::ExtendedNames(..) if !self.tree.has_attributes() => {
                Err(libc::ENOSYS)
            }
            FuseOperation::Extended(node, name, most) => {
                let all = self.tree.extended(node).unwrap_or_default();
                let found = all.iter().find(|(known, _)| known.as_bytes() == name);
                let answer = found.map(|(_, value)| protocol::extended(unique, value, most));
                answer.ok_or(libc::ENODATA)
            }
            FuseOperation::ExtendedNames(node, most) => {
                let all = self.tree.extended(node).unwrap_or_default();
                let names: Vec<u8> = all.iter().flat_map(|(name, _)| name.bytes().chain([0])).collect();
                Ok(protocol::extended(unique, &names, most))
            }
            FuseOperation::Unknown => Err(libc::ENOSYS),
            FuseOperation::Size => Ok(protocol::size(unique, self.content.tar_bytes(), self.tree.len() as u64)),
            FuseOperation::Lookup(directory, name) => {
                let found = self.tree.lookup(directory, name);
                let found = found.and_then(|node| self.tree.attributes(node));
                Ok(found.map_or_else(|| protocol::missing(unique), |found| found.found(unique)))
            }
            FuseOperation::Attributes(node) => self.tree.attributes(node).map(|a| a.answer(unique)).ok_or(libc::ENOENT),
            FuseOperation::Target(node) => match self.tree.node(node) {
                Some(Node::Symlink(target)) => Ok(protocol::answer(unique, target)),
                _ => Err(libc::EINVAL),
            },
            FuseOperation::List(directory, from, most) => self
                .list(directory, from, most as usize)
                .map_or(Err(libc::ENOTDIR), |names| Ok(protocol::answer(unique, &names))),
            FuseOperation::Read(node, offset, length) => match self.tree.node(node) {
                Some(Node::File { offset: begins, size }) => {
                    return self.read(unique, node, (*begins, *size), offset, length);
                }
                _ => Err(libc::EISDIR),
            },
        };
        Reply::Now(answer.unwrap_or_else(|errno| protocol::refusal(unique, errno)))
    }

    fn list(&self, directory: u64, from: u64, most: usize) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        for (next, (node, name)) in (from + 1..).zip(self.tree.list(directory, from)?) {
            let mode = self.tree.attributes(node).map_or(0, |attributes| attributes.mode);
            if !protocol::list(&mut out, most, node, next, mode, name) {
                break;
            }
        }
        Some(out)
    }

    fn read(&self, unique: u64, node: u64, (begins, size): (u64, u64), offset: u64, length: u32) -> Reply {
        let offset = offset.min(size);
        let length = u64::from(length).min(size - offset);
        if length == 0 {
            return Reply::Now(protocol::answer(unique, &[]));
        }
        let at = begins + offset;
        let pieces = Content::with(&(at..at + length));
        self.content.touch(pieces.clone());
        let in_order = self.follow(node, offset, offset + length);
        if self.content.has(pieces) {
            return Reply::Now(self.bytes(unique, at, length as usize));
        }
        let ahead = if in_order { AHEAD.min(size - offset - length) } else { 0 };
        Reply::Later(PendingRead {
            unique,
            node,
            offset: at,
            length: length as usize,
            until: at + length + ahead,
        })
    }

    /// Whether a read goes on where the last one of its file ended.
    fn follow(&self, node: u64, from: u64, to: u64) -> bool {
        let mut followed = self.followed.lock();
        if followed.len() >= FOLLOWED_MAX {
            followed.clear();
        }
        followed.insert(node, to).is_some_and(|last| last == from)
    }

    fn bytes(&self, unique: u64, at: u64, length: usize) -> Vec<u8> {
        let mut room = protocol::room(unique, length);
        match self.content.read(&mut room[protocol::answer_head()..], at) {
            Ok(()) => room,
            Err(error) => {
                tracing::error!(layer = %self.content.digest(), %error, "what was fetched of a layer cannot be read");
                self.content.counts().add_failed();
                protocol::refusal(unique, libc::EIO)
            }
        }
    }

    async fn wait(self: Arc<Self>, pending: PendingRead) {
        let PendingRead {
            unique, offset, length, ..
        } = pending;
        let wanted = Content::with(&(offset..offset + length as u64));
        let more = Content::with(&(offset..pending.until));
        if more.end > wanted.end {
            // Nobody waits for it, and a later read that needs it fetches it again.
            let content = Arc::clone(&self.content);
            let ahead = wanted.end..more.end;
            tokio::spawn(async move {
                let _ = tokio::time::timeout(READ_LIMIT, content.bring(ahead, FetchReason::Touched)).await;
            });
        }
        let mut failed = None;
        let brought = async {
            // A store that refuses may be back in a moment, and a failed fault ends a process.
            while let Err(error) = self.content.bring(wanted.clone(), FetchReason::Touched).await {
                failed = Some(chain(&error));
                tokio::time::sleep(AGAIN).await;
            }
        };
        let brought = tokio::time::timeout(READ_LIMIT, brought).await;
        let why = match brought {
            Ok(()) => {
                let this = Arc::clone(&self);
                let sent = move || this.send(&this.bytes(unique, offset, length));
                // It fails only in a shutdown, which ends the mount.
                let _ = tokio::task::spawn_blocking(sent).await;
                return;
            }
            Err(_) => failed.unwrap_or_else(|| format!("the store did not answer within {} s", READ_LIMIT.as_secs())),
        };
        self.content.counts().add_failed();
        self.send(&protocol::refusal(unique, libc::EIO));
        let is_due = {
            let mut told = self.content.told.lock();
            let is_due = told.is_none_or(|told| told.elapsed() >= TELL_EVERY);
            if is_due {
                *told = Some(Instant::now());
            }
            is_due
        };
        if is_due {
            let file = String::from_utf8_lossy(&self.tree.path(pending.node)).into_owned();
            tracing::error!(layer = %self.content.digest(), file, why, "a function's read of its image failed");
        }
    }
}

/// Reads the kernel's first request, and answers it. Then the kernel knows what the mount can do.
///
/// # Errors
/// Returns an error when the kernel is older than such mounts need.
pub(super) fn welcome(device: &File) -> io::Result<()> {
    let mut room = vec![0; REQUEST_MAX];
    let mut device = device;
    let length = device.read(&mut room)?;
    let welcome = protocol::welcome(&room[..length]).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::Unsupported,
            "the kernel cannot map users of such a mount: Linux 6.12 can",
        )
    })?;
    device.write_all(&welcome)
}

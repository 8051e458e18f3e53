//! One conversation with one `criu swrk`:
//!
//! ```text
//! worker                      criu
//!   │── request ───────────────>│
//!   │<───────────── notify(stage)│   at the requested stages; criu waits for each reply
//!   │── go on ─────────────────>│
//!   │<────────────────── response│
//! ```

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, recv, sendmsg, socketpair};
use prost::Message;

use super::descriptors::{PROBE_IMAGES_FD, own_descriptor};
use super::log::{CriuOperation, first_error};
use super::messages::{CGROUPS_IGNORE, InheritFdMessage, Kind, NETWORK_LOCK_SKIP, Options, Request, Response};
use super::stage::{CriuError, Stage, StageError};
use super::{DUMP_LOG, PROBE_LOG, RESTORE_LOG};

/// Maximum size of a CRIU response in bytes, with some margin.
const RESPONSE_MAX: usize = 64 * 1024;
/// Maximum size in bytes of an unlinked file that goes into the images.
const GHOST_LIMIT: u32 = 16 << 20;

/// A file descriptor of the CRIU process that restored processes get in place of `key`.
#[derive(Debug, Clone)]
pub struct InheritFd {
    /// Identifies the original at the dump, such as `pipe:[1234]`.
    pub key: String,
    /// The descriptor's number in the CRIU process.
    pub fd: i32,
}

/// What happens to the processes after a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterDump {
    /// They continue to run.
    Run,
    /// They stay stopped, as after `SIGSTOP`.
    Stop,
}

/// A checkpoint to take.
#[derive(Debug, Clone)]
pub struct DumpOrder {
    /// The image directory, as CRIU sees it.
    pub images_dir: String,
    /// The root of the process tree, in CRIU's pid namespace.
    pub pid: i32,
    /// What happens to the processes afterwards.
    pub after: AfterDump,
    /// The processes' frozen control group, as CRIU sees it. CRIU seizes every process in it before thawing it, and
    /// freezes it again at the end. Without a control group, processes are stopped one after the other, and those
    /// outside the tree go on.
    pub freezer: Option<String>,
    /// Files that CRIU must not look up by path, as [`external_file`](crate::descriptors::external_file) names them.
    pub external: Vec<String>,
    /// A directory below the image directory. CRIU assumes that it has the contents of every page not marked as changed
    /// since, so the dump only records which pages exist. See [`parent_images`](crate::images::parent_images).
    pub parent: Option<String>,
    /// 0 to 4.
    pub log_level: i32,
    /// Time limit.
    pub limit: Duration,
}

/// A checkpoint to restore.
#[derive(Debug, Clone)]
pub struct RestoreOrder {
    /// The image directory, as CRIU sees it.
    pub images_dir: String,
    /// Replacements for what was outside the process tree.
    pub inherit: Vec<InheritFd>,
    /// 0 to 4.
    pub log_level: i32,
    /// Time limit.
    pub limit: Duration,
}

/// The worker's end of a CRIU process's socket. Dropping it ends that process.
#[derive(Debug)]
pub struct Session {
    socket: OwnedFd,
}

impl Session {
    /// A session, and the descriptor to start `criu swrk` with.
    ///
    /// # Errors
    /// If the process is out of descriptors.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        Ok((Self { socket: ours }, theirs))
    }

    /// Takes a checkpoint. `at` is called at each stage while the processes are stopped.
    ///
    /// # Errors
    /// See [`CriuError`]. The processes then continue to run.
    pub fn dump(&self, order: &DumpOrder, at: impl FnMut(&Stage) -> Result<(), StageError>) -> Result<(), CriuError> {
        let options = Options {
            pid: Some(order.pid),
            leave_running: Some(order.after == AfterDump::Run),
            leave_stopped: Some(order.after == AfterDump::Stop),
            freeze_cgroup: order.freezer.clone(),
            external: order.external.clone(),
            track_mem: Some(order.parent.is_some()),
            parent_img: order.parent.clone(),
            ..common(order.images_dir.clone(), order.log_level, DUMP_LOG, order.limit)
        };
        self.converse("dump", Kind::Dump, options, order.limit, at).map(drop)
    }

    /// Orders a restore whose images need not exist yet. Nothing is received until [`Self::hear_restored`].
    ///
    /// # Errors
    /// If CRIU has died.
    pub fn order_restore(&self, order: &RestoreOrder) -> Result<(), CriuError> {
        self.send(&Request {
            kind: Kind::Restore.into(),
            options: Some(restore_options(order)),
            ..Request::default()
        })
    }

    /// Restores a checkpoint. `at` is called at each stage. [`Stage::PreResume`] is the last stage before the processes
    /// run. Returns the root's process id in CRIU's pid namespace.
    ///
    /// # Errors
    /// See [`CriuError`]. Restored processes may continue to run: the sandbox's owner must kill it.
    pub fn restore(
        &self,
        order: &RestoreOrder,
        at: impl FnMut(&Stage) -> Result<(), StageError>,
    ) -> Result<i32, CriuError> {
        self.order_restore(order)?;
        self.hear_restored(order.limit, at)
    }

    /// Completes a [`Self::restore`] that was ordered before, within `limit` from now.
    ///
    /// # Errors
    /// As for `Self::restore`.
    pub fn hear_restored(
        &self,
        limit: Duration,
        at: impl FnMut(&Stage) -> Result<(), StageError>,
    ) -> Result<i32, CriuError> {
        let response = self.hear("restore", limit, at)?;
        Ok(response.restore.map_or(0, |r| r.pid))
    }

    /// Makes CRIU probe the kernel. CRIU leaves the result in its working directory. If the kernel lacks an optional
    /// feature, CRIU reports that the check failed, but keeps the result all the same. Returns CRIU's version.
    ///
    /// # Errors
    /// If CRIU does not respond within `limit`, which is that of each of its two responses.
    pub fn probe(&self, limit: Duration) -> Result<(i32, i32, i32), CriuError> {
        let version = self.version(limit)?;
        let options = common(own_descriptor(PROBE_IMAGES_FD), 1, PROBE_LOG, limit);
        match self.converse("probe", Kind::Check, options, limit, |_| Ok(())) {
            Ok(_) | Err(CriuError::Failed { .. }) => Ok(version),
            Err(e) => Err(e),
        }
    }

    /// CRIU's version, as (major, minor, patch).
    ///
    /// # Errors
    /// See [`CriuError`].
    pub fn version(&self, limit: Duration) -> Result<(i32, i32, i32), CriuError> {
        self.ask_version(true, limit)
    }

    /// Ends a CRIU process that was never asked for anything. If its socket just closed, it would log an error on its
    /// standard error.
    ///
    /// # Errors
    /// See [`CriuError`]. CRIU ends in any case.
    pub fn dismiss(self, limit: Duration) -> Result<(), CriuError> {
        self.ask_version(false, limit).map(drop)
    }

    fn ask_version(&self, keep_open: bool, limit: Duration) -> Result<(i32, i32, i32), CriuError> {
        let request = Request {
            kind: Kind::Version.into(),
            keep_open: Some(keep_open),
            ..Request::default()
        };
        self.send(&request)?;
        let response = self.receive(Instant::now() + limit, limit)?;
        let version = response.version.unwrap_or_default();
        Ok((version.major, version.minor, version.sublevel.unwrap_or(0)))
    }

    fn converse(
        &self,
        what: &'static str,
        kind: Kind,
        options: Options,
        limit: Duration,
        at: impl FnMut(&Stage) -> Result<(), StageError>,
    ) -> Result<Response, CriuError> {
        self.send(&Request {
            kind: kind.into(),
            options: Some(options),
            ..Request::default()
        })?;
        self.hear(what, limit, at)
    }

    fn hear(
        &self,
        what: &'static str,
        limit: Duration,
        mut at: impl FnMut(&Stage) -> Result<(), StageError>,
    ) -> Result<Response, CriuError> {
        let mut deadline = Instant::now() + limit;
        let mut stopped_at = None;
        let work = match what {
            "restore" => CriuOperation::Restore,
            _ => CriuOperation::Other,
        };
        loop {
            let response = self.receive(deadline, limit)?;
            if response.kind != i32::from(Kind::Notify) {
                return match (stopped_at, response.success) {
                    (Some((stage, cause)), _) => Err(CriuError::Stage(stage, cause)),
                    (None, true) => Ok(response),
                    (None, false) => Err(CriuError::Failed {
                        what,
                        message: first_error(&response.message.unwrap_or_default(), work)
                            .unwrap_or("see its log")
                            .to_owned(),
                        errno: response.errno.unwrap_or(0),
                    }),
                };
            }
            let stage = match response.notify.and_then(|n| n.script).unwrap_or_default().as_str() {
                // It asks for files that it cannot know, of which we have none.
                "query-ext-files" => Stage::Seized,
                "post-dump" => Stage::PostDump,
                "pre-restore" => Stage::PreRestore,
                "post-restore" => Stage::PostRestore,
                "pre-resume" => Stage::PreResume,
                other => Stage::Other(other.to_owned()),
            };
            let asked = Instant::now();
            let done = at(&stage);
            // The caller's time does not count against CRIU's limit.
            deadline += asked.elapsed();
            let go_on = Request {
                kind: Kind::Notify.into(),
                notify_success: Some(done.is_ok()),
                ..Request::default()
            };
            if let Err(cause) = done {
                stopped_at.get_or_insert((stage, cause));
            }
            self.send(&go_on)?;
        }
    }

    /// Whether CRIU has sent something unexpected, or has died.
    pub fn has_spoken(&self) -> bool {
        let mut ready = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        poll(&mut ready, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    fn send(&self, request: &Request) -> Result<(), CriuError> {
        let bytes = request.encode_to_vec();
        let sent = sendmsg::<UnixAddr>(
            self.socket.as_raw_fd(),
            &[IoSlice::new(&bytes)],
            &[],
            MsgFlags::MSG_NOSIGNAL,
            None,
        );
        sent.map(drop).map_err(|e| CriuError::Died(e.into()))
    }

    fn receive(&self, deadline: Instant, limit: Duration) -> Result<Response, CriuError> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let wait = PollTimeout::try_from(left.as_millis()).unwrap_or(PollTimeout::MAX);
            let mut ready = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
            match poll(&mut ready, wait) {
                Ok(0) => return Err(CriuError::Timeout(limit)),
                Ok(_) => break,
                Err(nix::Error::EINTR) => {}
                Err(e) => return Err(CriuError::Died(e.into())),
            }
        }
        let mut buffer = vec![0_u8; RESPONSE_MAX];
        let length =
            recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty()).map_err(|e| CriuError::Died(e.into()))?;
        if length == 0 {
            return Err(CriuError::Died(io::ErrorKind::UnexpectedEof.into()));
        }
        Response::decode(&buffer[..length]).map_err(CriuError::Malformed)
    }
}

fn restore_options(order: &RestoreOrder) -> Options {
    let inherit = order.inherit.iter().map(|i| InheritFdMessage {
        key: i.key.clone(),
        fd: i.fd,
    });
    Options {
        inherit_fd: inherit.collect(),
        ..common(order.images_dir.clone(), order.log_level, RESTORE_LOG, order.limit)
    }
}

fn common(images_dir: String, log_level: i32, log: &str, limit: Duration) -> Options {
    Options {
        images_dir_fd: -1,
        images_dir: Some(images_dir),
        log_level: Some(log_level),
        log_file: Some(log.to_owned()),
        notify_scripts: Some(true),
        file_locks: Some(true),
        link_remap: Some(true),
        manage_cgroups_mode: Some(CGROUPS_IGNORE),
        ghost_limit: Some(GHOST_LIMIT),
        timeout: Some(u32::try_from(limit.as_secs()).unwrap_or(u32::MAX).max(1)),
        // A connection open at the checkpoint is closed in every restored instance, rather than silently dead.
        tcp_close: Some(true),
        network_lock: Some(NETWORK_LOCK_SKIP),
        // CRIU lacks some privileges of the host's root, and in a sandbox all of them. It finds its probe where it is
        // told to.
        unprivileged: Some(true),
        ..Options::default()
    }
}

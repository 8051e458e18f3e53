//! A CRIU that dumps the contents of a sandbox from outside.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rekindle_criu::Session;
use rekindle_init::dumper::NAMESPACES;
use rekindle_init::protocol::{FUNCTION_UID, Request};

use super::control::Control;
use super::{KillOnDrop, Sandbox, SandboxError, Zygote};

/// How long its start, and its way inside, may take. Both take milliseconds.
const LIMIT: Duration = Duration::from_secs(10);

/// A dumping CRIU and its session. Its drop ends both.
pub struct Dumper {
    /// The session to control CRIU.
    pub session: Session,
    control: Control,
    real_uid: u32,
    _process: KillOnDrop,
}

impl Dumper {
    /// Starts a CRIU in the control groups with these `cgroup.procs` files. It has the directories `images` and
    /// `freezer` as its fourth and fifth descriptor. Until [`Self::go_inside`] it sees nothing of the sandbox, which in
    /// turn sees only that there is one process more.
    ///
    /// # Errors
    /// Returns an error when the kernel refuses.
    pub async fn start(
        sandbox: &Sandbox,
        cgroup_procs: Vec<PathBuf>,
        images: &OwnedFd,
        freezer: &OwnedFd,
    ) -> Result<Self, SandboxError> {
        let open = |(name, _)| File::open(format!("/proc/{}/ns/{name}", sandbox.init_pid()));
        let namespaces = NAMESPACES.into_iter().map(open).collect::<io::Result<Vec<_>>>();
        let namespaces = namespaces.map_err(SandboxError::Namespace)?;
        let fds = [images.as_fd(), freezer.as_fd()];
        let fds = fds.into_iter().chain(namespaces.iter().map(AsFd::as_fd));
        let real_uid = sandbox.host_id(FUNCTION_UID);
        Self::fork(&sandbox.zygote, cgroup_procs, fds.collect(), real_uid).await
    }

    /// Starts a CRIU that probes the kernel, and leaves the result in the directory `images`.
    ///
    /// # Errors
    /// The same as [`Self::start`].
    pub async fn probe(zygote: &Zygote, images: &OwnedFd) -> Result<Self, SandboxError> {
        Self::fork(zygote, Vec::new(), vec![images.as_fd()], 0).await
    }

    async fn fork(
        zygote: &Zygote,
        cgroup_procs: Vec<PathBuf>,
        fds: Vec<BorrowedFd<'_>>,
        real_uid: u32,
    ) -> Result<Self, SandboxError> {
        let what = "start criu";
        let (control, process) = zygote.fork().await?;
        let process = KillOnDrop(process);
        let (session, theirs) = Session::pair().map_err(|e| SandboxError::Start("criu".to_owned(), e))?;
        let fds: Vec<_> = std::iter::once(theirs.as_fd()).chain(fds).collect();
        let started = control.request(Request::Dumper { cgroup_procs }, &fds, LIMIT).await;
        started.map_err(|e| SandboxError::Control(what, e))?;
        Ok(Self {
            session,
            control,
            real_uid,
            _process: process,
        })
    }

    /// Moves CRIU, which has replied to something, into the sandbox. The function must be stopped.
    ///
    /// # Errors
    /// Returns an error when the kernel refuses.
    pub async fn go_inside(&self) -> Result<(), SandboxError> {
        let request = Request::GoInside {
            real_uid: self.real_uid,
        };
        let inside = self.control.request(request, &[], LIMIT).await;
        inside
            .map(drop)
            .map_err(|e| SandboxError::Control("have criu go into the sandbox", e))
    }
}

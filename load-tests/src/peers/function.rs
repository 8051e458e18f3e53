//! The function as a process on the host: the platform's own root filesystem and files, by chroot, with the environment
//! of an instance.
#![allow(
    unsafe_code,
    reason = "std's Command can neither chroot nor make a session: both happen between fork and exec"
)]

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};
use nix::mount::{MsFlags, mount};

use crate::workload::Workload;

/// Directory of the function's files in the root filesystem.
const APP: &str = "app";

/// Its root filesystem, in a directory of the peers' own.
pub(super) struct Function {
    root: PathBuf,
    app: PathBuf,
    workload: Workload,
}

impl Function {
    /// Unpacks the root filesystem below `dir` and puts the function's folder in it.
    pub(super) fn unpacked(dir: &Path, archive: &Path, app: &Path, workload: Workload) -> Result<Self> {
        let root = dir.join("rootfs");
        for below in ["", APP, "proc", "dev", "tmp"] {
            let path = root.join(below);
            fs::create_dir_all(&path).with_context(|| format!("{}: cannot be made", path.display()))?;
        }
        let status = Command::new("tar")
            .arg("-C")
            .arg(&root)
            .arg("-xf")
            .arg(archive)
            .status();
        if !status.context("tar cannot be started")?.success() {
            bail!("{}: cannot be unpacked (see above)", archive.display());
        }
        let inside = |source: &Path, below: &str, kind: Option<&str>, flags: MsFlags| {
            let target = root.join(below);
            mount(Some(source), &target, kind, flags, None::<&str>)
                .with_context(|| format!("{}: cannot be mounted", target.display()))
        };
        inside(app, APP, None, MsFlags::MS_BIND)?;
        inside(Path::new("proc"), "proc", Some("proc"), MsFlags::empty())?;
        inside(Path::new("/dev"), "dev", None, MsFlags::MS_BIND | MsFlags::MS_REC)?;
        inside(Path::new("tmpfs"), "tmp", Some("tmpfs"), MsFlags::empty())?;
        Ok(Self {
            root,
            app: app.to_owned(),
            workload,
        })
    }

    /// Its root filesystem.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Its folder.
    pub(super) fn app(&self) -> &Path {
        &self.app
    }

    pub(super) fn workload(&self) -> Workload {
        self.workload
    }

    /// The command that starts it on this port.
    pub(super) fn command(&self, port: u16) -> Result<Command> {
        self.inside(port, false)
    }

    /// The command for a process that CRIU can dump: the leader of a session of its own, with no descriptor of ours.
    pub(super) fn leader_command(&self, port: u16) -> Result<Command> {
        self.inside(port, true)
    }

    fn inside(&self, port: u16, leader: bool) -> Result<Command> {
        let words = self.workload.command();
        let (program, arguments) = words.split_first().context("a workload has a command")?;
        let root = CString::new(self.root.as_os_str().as_bytes()).context("a path has no zero byte")?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env_clear()
            .envs(self.workload.environment(port))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let prepare = move || {
            // SAFETY: system calls on constants and on a string made before the fork; nothing is allocated.
            let done = unsafe {
                libc::chroot(root.as_ptr()) == 0
                    && libc::chdir(c"/app".as_ptr()) == 0
                    && (!leader
                        || libc::setsid() > 0
                            && libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) == 0)
            };
            if done { Ok(()) } else { Err(io::Error::last_os_error()) }
        };
        // SAFETY: the code between fork and exec only makes system calls.
        unsafe { command.pre_exec(prepare) };
        Ok(command)
    }
}

/// A process of ours; killed and reaped when dropped.
pub(super) struct Running(Child);

impl Running {
    pub(super) fn start(command: &mut Command) -> Result<Self> {
        let program = command.get_program().to_owned();
        command
            .spawn()
            .map(Self)
            .with_context(|| format!("{}: cannot be started", program.display()))
    }

    /// Its pid, as seen in this pid namespace.
    pub(super) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// An error if it has ended.
    pub(super) fn still_runs(&mut self) -> Result<()> {
        match self.0.try_wait().context("its end cannot be awaited")? {
            None => Ok(()),
            Some(status) => bail!("the process ended: {status}"),
        }
    }

    /// Its exit status, if it has ended.
    pub(super) fn ended(&mut self) -> Result<Option<std::process::ExitStatus>> {
        self.0.try_wait().context("its end cannot be awaited")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already, which is fine.
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

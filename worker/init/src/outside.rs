//! A sandbox's outside process: root on the host, in its own mount namespace. It creates init, and mounts what a
//! sandbox gets from the host.
//!
//! ```text
//! worker        outside                                      init
//!   │── Make ─────>│  own mount namespace, the stage shared
//!   │              │── clone into new namespaces ───────────>│  waits
//!   │              │── its ids ─────────────────────────────>│  root of its user namespace, nobody on the host
//!   │<─ init's id ─│                                         │  serves
//!   │── Mount ────>│  root, app: read-only, mapped ids
//!   │              │  ~~~~ the kernel mounts them there too ~~~~~>│
//!   │<─ done ──────│  exits                                  │
//! ```
//!
//! The sandbox itself mounts nothing from the host. The kernel locks mounts that propagate into its mount namespace
//! from one of another user namespace. The sandbox's root can neither make them writable nor look beneath them.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Pid, Uid, chdir, pipe};
use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};

use crate::causes::chain;
use crate::namespaces::{NamespaceError, become_root, fork_into_sandbox, join_cgroups, map_ids, prepare_network};
use crate::protocol::{Call, HostPaths, Layers, MakeSandbox, Message, ReceiveError, Reply, Request, receive, send};
use crate::reactor;
use crate::{devices, hollow, machine};

/// The contents of the stage: mount points for the root filesystem, the function's files, CRIU, devices, init's own
/// files, the sandbox's [`READY`](crate::rootfs::READY), and its own root.
const STAGE: [&str; 9] = ["root", "app", "criu", "dev", "own", "proc", "run", "sys", "new"];

/// Why a sandbox could not be created or equipped.
#[derive(Debug, thiserror::Error)]
pub enum OutsideError {
    /// Its namespaces could not be created.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// A system call failed.
    #[error("{0}")]
    Call(&'static str, #[source] Errno),
    /// A file is not available.
    #[error("{0}")]
    Io(&'static str, #[source] io::Error),
    /// A directory of the host cannot be mounted.
    #[error("mount {what}, {path}, for the sandbox")]
    Mount {
        /// What is mounted.
        what: &'static str,
        /// Its path.
        path: String,
        /// The cause.
        #[source]
        source: Errno,
    },
}

/// The outside process of a sandbox, or its init if the call returns inside the sandbox.
enum ForkSide {
    /// The process of init, and its user namespace.
    Outside(Pid, File),
    Inside(OwnedFd),
}

/// Creates a sandbox according to `order`, whose init receives requests on `inside`. Serves the sandbox until its
/// layers are mounted or nobody wants them. In init, runs init to its end.
///
/// # Errors
/// If a control socket breaks.
pub fn run(control: OwnedFd, room: &mut [u8], number: u64, order: &MakeSandbox, inside: OwnedFd) -> io::Result<()> {
    let say = |number, answer| send(control.as_fd(), &Message::Reply(number, answer), &[]);
    let users = match make(order, inside) {
        Ok(ForkSide::Inside(inside)) => {
            // Init must not receive the outside process's requests.
            drop(control);
            return reactor::run(&inside, room, !order.cgroup_procs.is_empty());
        }
        Ok(ForkSide::Outside(init, users)) => {
            say(number, Reply::Started(init.as_raw()))?;
            users
        }
        Err(e) => return say(number, Reply::Failed(chain(&e))),
    };
    let (call, trees) = match receive::<Call>(control.as_fd(), room) {
        Ok(received) => received,
        Err(ReceiveError::Closed) => return Ok(()),
        Err(e) => return Err(io::Error::other(e)),
    };
    let answer = match call.request {
        Request::Mount(layers) => match mount_layers(&layers, &trees, &users) {
            Ok(()) => Reply::Done,
            Err(e) => Reply::Failed(chain(&e)),
        },
        _ => Reply::Failed("outside of a sandbox layers are mounted, once, and nothing else".to_owned()),
    };
    say(call.number, answer)
}

fn make(order: &MakeSandbox, inside: OwnedFd) -> Result<ForkSide, OutsideError> {
    join_cgroups(&order.cgroup_procs)?;
    unshare(CloneFlags::CLONE_NEWNS).map_err(|e| OutsideError::Call("make a mount namespace", e))?;
    share_stage()?;
    let (waits, tells) = pipe().map_err(|e| OutsideError::Call("make a pipe", e))?;
    let (mut waits, mut tells) = (File::from(waits), File::from(tells));
    let Some(init) = fork_into_sandbox(Uid::from_raw(order.first_id))? else {
        drop(tells);
        waits
            .read_exact(&mut [0])
            .map_err(|e| OutsideError::Io("wait for its ids", e))?;
        become_root()?;
        return Ok(ForkSide::Inside(inside));
    };
    drop(waits);
    map_ids(init, order.first_id)?;
    let users =
        File::open(format!("/proc/{init}/ns/user")).map_err(|e| OutsideError::Io("open its user namespace", e))?;
    tells
        .write_all(&[1])
        .map_err(|e| OutsideError::Io("tell init of its ids", e))?;
    Ok(ForkSide::Outside(init, users))
}

/// Called in the zygote: turns the working directory into a stage with everything that sandboxes share. Only this
/// process and its forks see it.
///
/// # Errors
/// If a directory or a mount is refused.
pub fn prepare(common: &HostPaths) -> Result<(), OutsideError> {
    let none = None::<&Path>;
    let call = |what| move |e| OutsideError::Call(what, e);
    reset_priority().map_err(call("have sandboxes begin with the usual priority"))?;
    be_killed_like_others().map_err(|e| OutsideError::Io("have sandboxes killed like others", e))?;
    unshare(CloneFlags::CLONE_NEWNS).map_err(call("make a mount namespace"))?;
    // The host's later unmounts propagate here. Nothing propagates from here to the host.
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none)
        .map_err(call("cut mounts off from the host's"))?;
    // A CRIU that probes the kernel uses the network.
    prepare_network()?;
    machine::look_at_processor().map_err(|e| OutsideError::Io("look at the host's processors", e))?;
    hollow::prepare();
    let stage = common.stage.as_path();
    // A sandbox's root is nobody here, and the umask is arbitrary.
    let for_all = || fs::Permissions::from_mode(0o755);
    let making = |e| OutsideError::Io("make the stage", e);
    for name in STAGE {
        let path = stage.join(name);
        fs::create_dir_all(&path).map_err(making)?;
        fs::set_permissions(&path, for_all()).map_err(making)?;
    }
    fs::set_permissions(stage, for_all()).map_err(making)?;
    mount(Some(stage), stage, none, MsFlags::MS_BIND, none).map_err(call("mount the stage"))?;
    chdir(stage).map_err(call("go to the stage"))?;
    mount(none, ".", none, MsFlags::MS_PRIVATE, none).map_err(call("cut the stage off from the host's"))?;
    give("criu", &common.criu, "criu")?;
    with_devices("dev", || devices::make(Path::new("dev")))?;
    with_devices("own", || devices::make_userfault(Path::new(devices::USERFAULT)))
}

/// Gives all forks the priority that checkpointed processes have, because CRIU cannot raise it to that inside a user
/// namespace.
fn reset_priority() -> Result<(), Errno> {
    match rustix::process::setpriority_process(None, 0) {
        // A worker without permission has been given its priority on purpose.
        Ok(()) | Err(rustix::io::Errno::ACCESS | rustix::io::Errno::PERM) => Ok(()),
        Err(e) => Err(Errno::from_raw(e.raw_os_error())),
    }
}

/// The worker may be protected when memory is short, but no sandbox is. Where the worker has `CAP_SYS_RESOURCE`, this
/// is also the lowest score that a sandbox can set.
fn be_killed_like_others() -> io::Result<()> {
    const ADJUSTMENT: &str = "/proc/self/oom_score_adj";
    let now = fs::read_to_string(ADJUSTMENT)?;
    match now.trim().parse::<i32>() {
        Ok(now) if now >= 0 => Ok(()),
        _ => fs::write(ADJUSTMENT, "0"),
    }
}

/// Makes device nodes created by `make` in this directory of the stage work as devices, and protects them from later
/// changes.
fn with_devices(at: &str, make: impl FnOnce() -> io::Result<()>) -> Result<(), OutsideError> {
    let (none, kind) = (None::<&str>, Some("tmpfs"));
    let call = |what| move |e| OutsideError::Call(what, e);
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    mount(kind, at, kind, flags, Some("mode=755,size=64k,nr_inodes=64")).map_err(call("mount a place for devices"))?;
    make().map_err(|e| OutsideError::Io("make the devices", e))?;
    let flags = flags | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    mount(none, at, none, flags, none).map_err(call("make the devices read-only"))
}

/// Makes mounts on the stage appear in mount namespaces created from this one.
fn share_stage() -> Result<(), OutsideError> {
    let none = None::<&Path>;
    mount(none, ".", none, MsFlags::MS_SHARED, none).map_err(|e| OutsideError::Call("share the stage", e))
}

/// Mounts the layers, of which the worker has made the mounts `trees`.
fn mount_layers(layers: &Layers, trees: &[OwnedFd], users: &File) -> Result<(), OutsideError> {
    let [rootfs, app] = trees else {
        return Err(OutsideError::Call("take the mounts of the layers", Errno::EINVAL));
    };
    let users = Some(users);
    give_tree("the root filesystem", &layers.rootfs, rootfs, "root", users)?;
    give_tree("the function's files", &layers.app, app, "app", users)
}

/// Mounts a directory of the host in the stage, as [`give_tree`] does.
fn give(what: &'static str, from: &Path, to: &str) -> Result<(), OutsideError> {
    let tree = open_tree(
        CWD,
        from,
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC,
    );
    let tree = tree.map_err(|e| OutsideError::Mount {
        what,
        path: from.display().to_string(),
        source: Errno::from_raw(e.raw_os_error()),
    })?;
    give_tree(what, from, &tree, to, None)
}

/// Mounts the mount `tree` of the directory `from` in the stage, read-only. With the user namespace `users`, files of
/// the host's root belong to the sandbox's root. Where the file system does not support that (overlay), or without
/// `users`, they belong to nobody.
fn give_tree(
    what: &'static str,
    from: &Path,
    tree: &OwnedFd,
    to: &str,
    users: Option<&File>,
) -> Result<(), OutsideError> {
    let failed = |source| OutsideError::Mount {
        what,
        path: from.display().to_string(),
        source,
    };
    if let Some(users) = users {
        match set_attributes(tree, libc::MOUNT_ATTR_IDMAP, Some(users)) {
            Ok(()) | Err(Errno::EINVAL) => {}
            Err(e) => return Err(failed(e)),
        }
    }
    let flags = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
    set_attributes(tree, flags, None).map_err(failed)?;
    move_mount(tree, "", CWD, to, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .map_err(|e| failed(Errno::from_raw(e.raw_os_error())))
}

#[expect(unsafe_code, reason = "mount_setattr has no safe wrapper")]
fn set_attributes(tree: &OwnedFd, flags: u64, users: Option<&File>) -> Result<(), Errno> {
    let attributes = libc::mount_attr {
        attr_set: flags,
        attr_clr: 0,
        propagation: 0,
        userns_fd: users.map_or(0, |users| users.as_raw_fd() as u64),
    };
    // SAFETY: the path is a constant, the structure lives until the call returns, and its size is its own.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    Errno::result(result).map(drop)
}

//! A sandbox as the platform makes it, as far as a restore can tell: a user namespace that owns the others, the
//! function's root read-only, and its user 1000. Its pid 1 starts the hollow process with the function's id.

use std::ffi::CString;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::ptr::null;

use anyhow::{Context as _, Result, bail, ensure};
use restore_program::Order;

/// The host's id of the sandbox's root.
const FIRST_ID: u32 = 3_000_000;
/// The function's process.
pub const FUNCTION: i32 = 501;
const NAMESPACES: i32 = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC;

/// What a sandbox is made of.
#[derive(Clone)]
pub struct Layers {
    pub rootfs: String,
    pub app: String,
    pub hollow: String,
}

/// A sandbox with a hollow process. Dropping it kills everything in it.
pub struct Sandbox {
    init: i32,
    /// The hollow process's id on the host.
    pub function: i32,
    /// The other end of the hollow process's control socket.
    pub control: OwnedFd,
    /// A fresh userfaultfd of its memory.
    pub userfault: Option<OwnedFd>,
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // SAFETY: kills and reaps our own child, which ends only when those that we trace in it are reaped, too.
        unsafe {
            libc::kill(self.init, libc::SIGKILL);
            loop {
                let reaped = libc::waitpid(-1, std::ptr::null_mut(), libc::__WALL);
                if reaped == self.init || reaped < 0 {
                    break;
                }
            }
        }
    }
}

fn check(result: i64, what: &str) -> Result<i64> {
    if result < 0 {
        return Err(std::io::Error::last_os_error()).with_context(|| what.to_owned());
    }
    Ok(result)
}

fn mount(from: &str, to: &str, kind: Option<&str>, flags: u64, data: &str) -> Result<()> {
    let (source, target, options) = (CString::new(from)?, CString::new(to)?, CString::new(data)?);
    let kind = kind.map(CString::new).transpose()?;
    let kind = kind.as_ref().map_or(null(), |k| k.as_ptr());
    // SAFETY: all strings outlive the call.
    let done = unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind, flags, options.as_ptr().cast()) };
    check(done.into(), &format!("mount {to}")).map(drop)
}

/// A pair of sockets that keep the bounds of messages.
fn pair() -> Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: the kernel writes two descriptors, which are owned from here on.
    unsafe {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        check(
            libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()).into(),
            "socketpair",
        )?;
        Ok((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])))
    }
}

/// Mounts the function's files on the empty directory `stage`, in a mount namespace of this program's own: the
/// sandboxes' root cannot reach them by their paths.
pub fn mount_layers(stage: &Path, layers: &Layers) -> Result<()> {
    // SAFETY: this program has one thread so far.
    check(
        unsafe { libc::unshare(libc::CLONE_NEWNS) }.into(),
        "make a mount namespace",
    )?;
    let root = stage.to_str().context("stage")?;
    mount("none", "/", None, libc::MS_REC | libc::MS_PRIVATE, "")?;
    mount(&layers.rootfs, root, None, libc::MS_BIND, "")?;
    mount(&layers.app, &format!("{root}/app"), None, libc::MS_BIND, "")
}

/// Makes a sandbox in which a hollow process waits. `stage` is an empty directory.
pub fn make(stage: &Path, layers: &Layers) -> Result<Sandbox> {
    let (control, inside) = pair()?;
    let (mut ours, mut theirs) = UnixStream::pair()?;
    let device = fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/userfaultfd")
        .context("userfaultfd")?;
    // SAFETY: a fork into new namespaces. This program has one thread when it makes sandboxes.
    let init = unsafe { libc::syscall(libc::SYS_clone, NAMESPACES | libc::SIGCHLD, 0, 0, 0, 0) };
    if check(init, "clone")? == 0 {
        drop(ours);
        let done = become_init(stage, layers, inside.as_raw_fd(), device.as_raw_fd(), &mut theirs);
        eprintln!(
            "sandbox: {:#}",
            done.err().unwrap_or_else(|| anyhow::anyhow!("init ended"))
        );
        std::process::exit(1);
    }
    let init = init as i32;
    drop(theirs);
    let mut sandbox = Sandbox {
        init,
        function: 0,
        control,
        userfault: None,
    };
    for map in ["uid_map", "gid_map"] {
        fs::write(format!("/proc/{init}/{map}"), format!("0 {FIRST_ID} 65536\n"))?;
    }
    ours.write_all(&[1])?;
    ours.read_exact(&mut [0]).context("the sandbox failed")?;
    let children = fs::read_to_string(format!("/proc/{init}/task/{init}/children"))?;
    sandbox.function = children.trim().parse().context("the hollow process")?;
    drop(inside);
    sandbox.userfault = Some(receive_descriptor(&sandbox.control)?);
    Ok(sandbox)
}

fn become_init(stage: &Path, layers: &Layers, control: RawFd, device: RawFd, told: &mut UnixStream) -> Result<()> {
    told.read_exact(&mut [0])?;
    // SAFETY: plain system calls of a process with one thread.
    unsafe {
        check(libc::setgroups(0, null()).into(), "setgroups")?;
        check(libc::setresgid(0, 0, 0).into(), "setresgid")?;
        check(libc::setresuid(0, 0, 0).into(), "setresuid")?;
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
    }
    let hollow = fs::File::open(&layers.hollow).context("open hollow")?;
    let root = stage.to_str().context("stage")?.to_owned();
    // A mount of another user namespace cannot be a root, but a copy can.
    mount(&root, &root, None, libc::MS_BIND | libc::MS_REC, "")?;
    let quiet = libc::MS_NOSUID | libc::MS_NODEV;
    mount("proc", &format!("{root}/proc"), Some("proc"), quiet, "")?;
    mount("tmpfs", &format!("{root}/tmp"), Some("tmpfs"), quiet, "mode=1777")?;
    mount(
        "tmpfs",
        &format!("{root}/dev"),
        Some("tmpfs"),
        libc::MS_NOSUID,
        "mode=755",
    )?;
    fs::create_dir(format!("{root}/dev/shm"))?;
    for device in ["null", "zero", "full", "random", "urandom"] {
        let at = format!("{root}/dev/{device}");
        fs::write(&at, "")?;
        mount(&format!("/dev/{device}"), &at, None, libc::MS_BIND, "")?;
    }
    if let Some(criu) = std::env::var_os("CRIU") {
        // For who wants to dump what was restored.
        mount(
            criu.to_str().context("CRIU")?,
            &format!("{root}/opt"),
            None,
            libc::MS_BIND | libc::MS_REC,
            "",
        )?;
        mount("tmpfs", &format!("{root}/run"), Some("tmpfs"), quiet, "mode=777")?;
        // What it knows of the kernel: it cannot find that out here.
        let probe = std::env::var_os("CRIU_PROBE").context("CRIU_PROBE")?;
        fs::write(format!("{root}/run/criu.kdat"), fs::read(probe)?)?;
    }
    let (root, put) = (CString::new(root)?, c".");
    // SAFETY: plain system calls.
    unsafe {
        check(libc::chdir(root.as_ptr()).into(), "chdir")?;
        check(
            libc::syscall(libc::SYS_pivot_root, put.as_ptr(), put.as_ptr()),
            "pivot_root",
        )?;
        check(libc::umount2(put.as_ptr(), libc::MNT_DETACH).into(), "umount")?;
        check(libc::chdir(c"/".as_ptr()).into(), "chdir")?;
    }
    loopback_up()?;
    let ids = [FUNCTION];
    // SAFETY: an all-zero structure is valid.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.exit_signal = libc::SIGCHLD as u64;
    (arguments.set_tid, arguments.set_tid_size) = (ids.as_ptr() as u64, 1);
    // SAFETY: a fork, of a process with one thread.
    let made = unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<libc::clone_args>()) };
    if check(made, "clone3 with an id")? == 0 {
        // SAFETY: the descriptors are open; the strings are constants.
        unsafe {
            let device = libc::fcntl(device, libc::F_DUPFD, 10);
            check(libc::dup2(control, 3).into(), "dup2")?;
            check(libc::dup2(device, 4).into(), "dup2")?;
            libc::close(device);
            let nothing: [*const libc::c_char; 1] = [null()];
            let name: [*const libc::c_char; 2] = [c"hollow".as_ptr(), null()];
            let (fd, empty) = (hollow.as_raw_fd(), c"".as_ptr());
            libc::syscall(
                libc::SYS_execveat,
                fd,
                empty,
                name.as_ptr(),
                nothing.as_ptr(),
                libc::AT_EMPTY_PATH,
            );
        }
        bail!("exec: {}", std::io::Error::last_os_error());
    }
    // The end of the hollow process must be the end of its socket.
    // SAFETY: nothing uses the descriptor any more.
    unsafe { libc::close(control) };
    told.write_all(&[1])?;
    let mut status = 0;
    // SAFETY: waits for children.
    while unsafe { libc::waitpid(-1, &raw mut status, 0) } > 0 {
        if std::env::var_os("VERBOSE").is_some() {
            eprintln!("sandbox: a process ended with {status:#x}");
        }
    }
    // The sandbox is inspected until it is killed.
    loop {
        // SAFETY: waits for a signal.
        unsafe { libc::pause() };
    }
}

fn loopback_up() -> Result<()> {
    // SAFETY: an all-zero ifreq is valid; the name fits.
    unsafe {
        let socket = check(libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0).into(), "socket")? as RawFd;
        let mut request: libc::ifreq = std::mem::zeroed();
        (request.ifr_name[0], request.ifr_name[1]) = (b'l' as i8, b'o' as i8);
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
        check(
            libc::ioctl(socket, libc::SIOCSIFFLAGS, &raw const request).into(),
            "loopback",
        )?;
        libc::close(socket);
    }
    Ok(())
}

/// Receives a descriptor.
fn receive_descriptor(control: &OwnedFd) -> Result<OwnedFd> {
    let (mut byte, mut rights) = (0u8, [0u64; 4]);
    let mut part = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    // SAFETY: the message's parts outlive the call; a received descriptor is owned from here on.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        (message.msg_control, message.msg_controllen) = (rights.as_mut_ptr().cast(), size_of_val(&rights));
        let read = libc::recvmsg(control.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC);
        check(read as i64, "receive the userfaultfd")?;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        ensure!(read == 1 && !header.is_null(), "the hollow process ended early");
        Ok(OwnedFd::from_raw_fd(
            libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned(),
        ))
    }
}

/// Sends a hollow process its order.
pub fn order(control: &OwnedFd, order: Order, descriptors: &[RawFd]) -> Result<()> {
    ensure!(descriptors.len() <= 8, "too many descriptors");
    let mut part = libc::iovec {
        iov_base: (&raw const order).cast_mut().cast(),
        iov_len: size_of_val(&order),
    };
    let mut rights = [0u64; 8];
    let bytes = size_of_val(descriptors) as u32;
    // SAFETY: the message's parts outlive the call, and there is room for the descriptors.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        message.msg_control = rights.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(bytes) as usize;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        ((*header).cmsg_level, (*header).cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
        (*header).cmsg_len = libc::CMSG_LEN(bytes) as usize;
        std::ptr::copy_nonoverlapping(descriptors.as_ptr(), libc::CMSG_DATA(header).cast(), descriptors.len());
        check(
            libc::sendmsg(control.as_raw_fd(), &raw const message, 0) as i64,
            "send the order",
        )
        .map(drop)
    }
}

//! Tries each step of a restore with different rights, and prints the kernel's errors.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::ptr::{null, null_mut};

use anyhow::{Context as _, Result, ensure};
use libc::{c_int, c_long};

/// Who tries.
const COLUMNS: [(&str, bool, Standing); 6] = [
    ("host's root", false, Standing::Root),
    ("host's user", false, Standing::User(0)),
    ("user inside", true, Standing::User(0)),
    ("user inside, CHECKPOINT_RESTORE", true, Standing::User(1 << 40)),
    (
        "and SYS_ADMIN, SYS_TIME",
        true,
        Standing::User(1 << 40 | 1 << 21 | 1 << 25),
    ),
    ("root inside", true, Standing::Root),
];

#[derive(Debug, Clone, Copy)]
enum Standing {
    Root,
    /// User 1000 with these capabilities.
    User(u64),
}

/// A step: its name, and what it does in a fresh process. 0, or the kernel's error.
type Step = (&'static str, fn() -> c_int);

const NEW_TIME: c_int = 0x80;

fn errno(result: c_long) -> c_int {
    if result < 0 {
        std::io::Error::last_os_error().raw_os_error().unwrap_or(-1)
    } else {
        0
    }
}

/// `prctl_mm_map` of this process as it is.
fn memory_map(program: Option<&std::ffi::CStr>) -> c_int {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<u64> = stat
        .rsplit(") ")
        .next()
        .unwrap_or("")
        .split(' ')
        .map(|f| f.parse().unwrap_or(0))
        .collect();
    let f = |number: usize| fields[number - 3];
    // SAFETY: plain calls; the structure outlives its call.
    unsafe {
        let brk = libc::sbrk(0) as u64;
        let program = program.map_or(-1, |path| libc::open(path.as_ptr(), libc::O_RDONLY));
        let last = u64::from(program as u32) << 32;
        let map = [
            f(26),
            f(27),
            f(45),
            f(46),
            f(47),
            brk,
            f(28),
            f(48),
            f(49),
            f(50),
            f(51),
            0,
            last,
        ];
        errno(libc::prctl(35, 14, map.as_ptr(), size_of_val(&map), 0).into())
    }
}

/// Makes a child with a chosen id, and has it do something.
fn choose_id(then: fn() -> c_int) -> c_int {
    let ids = [777i32];
    // SAFETY: an all-zero structure is valid; a fork of a process with one thread.
    unsafe {
        let mut arguments: libc::clone_args = std::mem::zeroed();
        (arguments.set_tid, arguments.set_tid_size) = (ids.as_ptr() as u64, 1);
        arguments.exit_signal = libc::SIGCHLD as u64;
        match libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<libc::clone_args>()) {
            0 => libc::_exit(then()),
            made => {
                let (error, mut status) = (errno(made), 0);
                libc::waitpid(-1, &raw mut status, 0);
                error.max(libc::WEXITSTATUS(status))
            }
        }
    }
}

fn write_to(path: &str, text: &str) -> c_int {
    fs::write(path, text)
        .err()
        .map_or(0, |e| e.raw_os_error().unwrap_or(-1))
}

fn clocks(enter: bool) -> c_int {
    // SAFETY: plain calls.
    unsafe {
        let error = errno(libc::unshare(NEW_TIME).into());
        if error != 0 {
            return error;
        }
        let error = write_to("/proc/self/timens_offsets", "monotonic 100 0\nboottime 100 0\n");
        if error != 0 || !enter {
            return error;
        }
        let clocks = libc::open(c"/proc/self/ns/time_for_children".as_ptr(), libc::O_RDONLY);
        errno(libc::setns(clocks, NEW_TIME).into())
    }
}

fn kernel_pages(moved: bool) -> c_int {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut error = 0;
    for line in maps.lines().filter(|l| l.contains("[vdso]") || l.contains("[vvar")) {
        let bounds = line.split(' ').next().and_then(|b| b.split_once('-'));
        let Some((start, end)) = bounds else { continue };
        let address = |text: &str| u64::from_str_radix(text, 16).unwrap_or(0);
        let (start, length) = (address(start), address(end) - address(start));
        // SAFETY: nothing uses the vdso from here on but the C library's clock, which is not called.
        unsafe {
            let done = if moved {
                libc::syscall(libc::SYS_mremap, start, length, length, 3, start - 0x1000_0000)
            } else {
                libc::syscall(libc::SYS_munmap, start, length)
            };
            error = errno(done).max(error);
        }
    }
    if moved || error != 0 {
        return error;
    }
    // SAFETY: maps where nothing is.
    errno(unsafe { libc::syscall(libc::SYS_arch_prctl, 0x2003, 0x5000_0000_0000u64) })
}

/// A userfaultfd by the device, or by the system call with flags.
fn userfault(call: Option<c_int>) -> Result<c_int, c_int> {
    // SAFETY: plain calls.
    let made = unsafe {
        match call {
            Some(flags) => libc::syscall(libc::SYS_userfaultfd, flags),
            // Opened by the host's root before, as init does.
            None => libc::ioctl(DEVICE, 0xaa00, libc::O_CLOEXEC).into(),
        }
    };
    if made < 0 { Err(errno(made)) } else { Ok(made as c_int) }
}

/// Number of the descriptor of `/dev/userfaultfd`, which is opened ahead.
const DEVICE: c_int = 90;

/// Agrees on features and registers a private mapping of a memory file.
fn register(features: u64) -> c_int {
    let userfault = match userfault(None) {
        Ok(userfault) => userfault,
        Err(error) => return error,
    };
    // SAFETY: plain calls; the structures outlive them.
    unsafe {
        let mut agreement = [0xaau64, features, 0];
        let error = errno(libc::ioctl(userfault, 0xc018_aa3f, agreement.as_mut_ptr()).into());
        if error != 0 {
            return error;
        }
        let file = libc::memfd_create(c"template".as_ptr(), 0);
        libc::ftruncate(file, 65536);
        let at = libc::mmap(null_mut(), 65536, 3, libc::MAP_PRIVATE, file, 0);
        let mut range = [at as u64, 65536, 1 | 4, 0];
        errno(libc::ioctl(userfault, 0xc020_aa00, range.as_mut_ptr()).into())
    }
}

fn filter(no_new_privs: bool) -> c_int {
    let allow = [libc::sock_filter {
        code: 6,
        jt: 0,
        jf: 0,
        k: 0x7fff_0000,
    }];
    let program = libc::sock_fprog {
        len: 1,
        filter: allow.as_ptr().cast_mut(),
    };
    // SAFETY: plain calls; the program outlives its call.
    unsafe {
        if no_new_privs {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        }
        errno(libc::syscall(libc::SYS_seccomp, 1, 1, &raw const program))
    }
}

fn limit(which: libc::__rlimit_resource_t, change: fn(u64) -> u64) -> c_int {
    // SAFETY: plain calls.
    unsafe {
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        libc::getrlimit(which, &raw mut limit);
        limit.rlim_max = change(limit.rlim_max);
        limit.rlim_cur = limit.rlim_cur.min(limit.rlim_max);
        errno(libc::setrlimit(which, &raw const limit).into())
    }
}

fn map_at(address: u64) -> c_int {
    // SAFETY: maps where nothing is.
    let at = unsafe { libc::mmap(address as *mut _, 4096, 3, 0x10_0022, -1, 0) };
    if at == libc::MAP_FAILED { errno(-1) } else { 0 }
}

fn socket_option(level: c_int, name: c_int, value: c_int) -> c_int {
    // SAFETY: plain calls.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0);
        errno(libc::setsockopt(socket, level, name, (&raw const value).cast(), 4).into())
    }
}

fn bind_low() -> c_int {
    // SAFETY: plain calls.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0);
        let mut address: libc::sockaddr_in = std::mem::zeroed();
        (address.sin_family, address.sin_port) = (libc::AF_INET as u16, 81u16.to_be());
        errno(
            libc::bind(
                socket,
                (&raw const address).cast(),
                size_of::<libc::sockaddr_in>() as u32,
            )
            .into(),
        )
    }
}

fn pending() -> c_int {
    // SAFETY: the signal is blocked, and sent to this process with the kernel's own code.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut set);
        libc::sigprocmask(libc::SIG_BLOCK, &raw const set, null_mut());
        let mut information = [0i32; 32];
        (information[0], information[2]) = (libc::SIGALRM, 0x80);
        errno(libc::syscall(
            libc::SYS_rt_sigqueueinfo,
            libc::getpid(),
            libc::SIGALRM,
            information.as_ptr(),
        ))
    }
}

fn timer_with_id() -> c_int {
    // PR_TIMER_CREATE_RESTORE_IDS, on.
    // SAFETY: plain calls.
    unsafe {
        let error = errno(libc::prctl(77, 1, 0, 0, 0).into());
        let mut id = 42i32;
        if error != 0 {
            return error;
        }
        errno(libc::syscall(libc::SYS_timer_create, 1, null::<u8>(), &raw mut id)).max(if id == 42 { 0 } else { -1 })
    }
}

const STEPS: &[Step] = &[
    ("`mmap` at 0x1000", || map_at(0x1000)),
    ("`mmap` at 0x10000", || map_at(0x1_0000)),
    ("`mremap` of vdso and vvar", || kernel_pages(true)),
    ("`arch_prctl(ARCH_MAP_VDSO_64)` after `munmap`", || kernel_pages(false)),
    ("`PR_SET_MM_MAP`, same program", || memory_map(None)),
    ("`PR_SET_MM_MAP`, another program, own still mapped", || {
        memory_map(Some(c"/bin/true"))
    }),
    ("`PR_SET_MM`, one field", || {
        // SAFETY: a plain call.
        errno(unsafe { libc::prctl(35, 6, libc::sbrk(0), 0, 0) }.into())
    }),
    ("`clone3` with `set_tid`", || choose_id(|| 0)),
    ("… and in that child `setsid`", || {
        // SAFETY: a plain call.
        choose_id(|| errno(unsafe { libc::setsid() }.into()))
    }),
    ("… and `USERFAULTFD_IOC_NEW` on a given descriptor", || {
        choose_id(|| userfault(None).err().unwrap_or(0))
    }),
    ("write `ns_last_pid`", || {
        write_to("/proc/sys/kernel/ns_last_pid", "900")
    }),
    ("`unshare(CLONE_NEWTIME)`, offsets", || clocks(false)),
    ("… and `setns` to it", || clocks(true)),
    ("`userfaultfd`", || userfault(Some(0)).err().unwrap_or(0)),
    ("`userfaultfd`, user faults only", || {
        userfault(Some(1)).err().unwrap_or(0)
    }),
    ("open `/dev/userfaultfd` (mode 0600)", || {
        // SAFETY: a plain call.
        errno(unsafe { libc::open(c"/dev/userfaultfd".as_ptr(), libc::O_RDWR) }.into())
    }),
    ("`USERFAULTFD_IOC_NEW` on a given descriptor", || {
        userfault(None).err().unwrap_or(0)
    }),
    ("`UFFDIO_API` with remap, remove, unmap; register", || {
        register(1 << 2 | 1 << 3 | 1 << 6)
    }),
    ("`UFFDIO_API` with fork events", || register(1 << 1)),
    ("`seccomp` with `no_new_privs`, all threads", || filter(true)),
    ("`seccomp` without", || filter(false)),
    ("lower a hard limit", || limit(libc::RLIMIT_NOFILE, |max| max.min(1024))),
    ("raise a hard limit", || {
        limit(libc::RLIMIT_CORE, |_| u64::MAX).max(limit(libc::RLIMIT_NOFILE, |max| max + 1))
    }),
    ("`setpriority` -1", || {
        // SAFETY: a plain call.
        errno(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -1) }.into())
    }),
    ("`oom_score_adj` -1", || write_to("/proc/self/oom_score_adj", "-1")),
    ("`SO_SNDBUFFORCE`", || socket_option(1, 32, 65536)),
    ("`TCP_REPAIR`", || socket_option(6, 19, 1)),
    ("bind port 81", bind_low),
    ("queue a signal of the kernel's to itself", pending),
    ("POSIX timer with a chosen id", timer_with_id),
];

fn stand(standing: Standing) {
    let Standing::User(rights) = standing else { return };
    // SAFETY: plain calls of a process with one thread.
    unsafe {
        libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0);
        libc::setgroups(0, null());
        libc::setresgid(1000, 1000, 1000);
        libc::setresuid(1000, 1000, 1000);
        let (low, high) = (rights as u32, (rights >> 32) as u32);
        let (header, data) = ([0x2008_0522u32, 0], [low, low, 0, high, high, 0]);
        libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr());
        libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0);
    }
}

/// Runs all steps in new namespaces, with a user namespace or without. Returns an error number for each.
fn column(user: bool, standing: Standing) -> Result<Vec<c_int>> {
    let (mut ours, mut theirs) = UnixStream::pair()?;
    let namespaces = libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWNET;
    let namespaces = namespaces | if user { libc::CLONE_NEWUSER } else { 0 };
    // SAFETY: a fork into new namespaces of a program with one thread.
    let init = unsafe { libc::syscall(libc::SYS_clone, namespaces | libc::SIGCHLD, 0, 0, 0, 0) };
    ensure!(init >= 0, "clone: {}", std::io::Error::last_os_error());
    if init == 0 {
        drop(ours);
        theirs.read_exact(&mut [0])?;
        // SAFETY: plain calls and forks of a process with one thread.
        unsafe {
            libc::setresgid(0, 0, 0);
            libc::setresuid(0, 0, 0);
            libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0);
            libc::mount(
                c"none".as_ptr(),
                c"/".as_ptr(),
                null(),
                libc::MS_REC | libc::MS_PRIVATE,
                null(),
            );
            libc::mount(c"proc".as_ptr(), c"/proc".as_ptr(), c"proc".as_ptr(), 0, null());
            for (_, step) in STEPS {
                if libc::fork() == 0 {
                    stand(standing);
                    libc::_exit(step());
                }
                let mut status = 0;
                libc::wait(&raw mut status);
                let error = if libc::WIFEXITED(status) {
                    libc::WEXITSTATUS(status)
                } else {
                    -libc::WTERMSIG(status)
                };
                theirs.write_all(&error.to_le_bytes())?;
            }
        }
        std::process::exit(0);
    }
    drop(theirs);
    if user {
        for map in ["uid_map", "gid_map"] {
            fs::write(format!("/proc/{init}/{map}"), "0 3000000 65536\n")?;
        }
    }
    ours.write_all(&[1])?;
    let mut bytes = Vec::new();
    ours.read_to_end(&mut bytes)?;
    // SAFETY: reaps our own child.
    unsafe { libc::waitpid(init as i32, null_mut(), 0) };
    Ok(bytes
        .chunks_exact(4)
        .map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect())
}

/// Prints what each step answers to whom.
pub fn print() -> Result<()> {
    // SAFETY: plain calls.
    unsafe {
        let device = libc::open(c"/dev/userfaultfd".as_ptr(), libc::O_RDWR);
        libc::dup2(device, DEVICE);
    }
    let columns = COLUMNS.iter().map(|(_, user, standing)| column(*user, *standing));
    let columns = columns.collect::<Result<Vec<_>>>().context("try")?;
    let names: Vec<&str> = COLUMNS.iter().map(|(name, ..)| *name).collect();
    println!("| step | {} |\n|{}", names.join(" | "), "---|".repeat(names.len() + 1));
    for (at, (name, _)) in STEPS.iter().enumerate() {
        let told = |error: &c_int| match *error {
            0 => "yes".to_owned(),
            error if error < 0 => format!("signal {}", -error),
            error => {
                // SAFETY: the kernel's name for an error is a constant string.
                let name = unsafe { strerrorname_np(error) };
                // SAFETY: as above.
                if name.is_null() {
                    error.to_string()
                } else {
                    unsafe { std::ffi::CStr::from_ptr(name) }.to_string_lossy().into()
                }
            }
        };
        let cells: Vec<String> = columns
            .iter()
            .map(|c| c.get(at).map_or_else(|| "?".to_owned(), told))
            .collect();
        println!("| {name} | {} |", cells.join(" | "));
    }
    Ok(())
}

unsafe extern "C" {
    fn strerrorname_np(error: c_int) -> *const libc::c_char;
}

//! What a process does after its point is undone, or makes it unfit. The process is a Python program that runs whatever
//! its one connection brings.
#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rekindle_rewind::{Behind, Exchanged, Point, Surroundings, ToldCalls, Unfit, Waiting};

const PROGRAM: &str = r#"
import ctypes, mmap, os, signal, socket, sys, tempfile, threading, time
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
held = {"count": 0, "list": [], "buffer": bytearray(1 << 20)}
file = open(os.__file__)
inner, outer = os.pipe()
left, right = socket.socketpair()
counter = os.eventfd(0, os.EFD_NONBLOCK)
waiting = threading.Event()
threading.Thread(target=waiting.wait, daemon=True).start()
before = os.environ.get("BEFORE")
if before:
    exec(before)
connection, _ = listener.accept()
while True:
    length = connection.recv(4, socket.MSG_WAITALL)
    if not length:
        break
    code = connection.recv(int.from_bytes(length, "big"), socket.MSG_WAITALL).decode()
    try:
        answer = repr(eval(code))
    except SyntaxError:
        try:
            exec(code)
            answer = "done"
        except Exception as e:
            answer = "failed: " + repr(e)
    except Exception as e:
        answer = repr(e)
    connection.sendall(len(answer).to_bytes(4, "big") + answer.encode())
"#;

struct Process {
    child: Child,
    port: u16,
    connection: TcpStream,
    sent: AtomicU64,
    read: AtomicU64,
}

impl Drop for Process {
    fn drop(&mut self) {
        // Whoever traced it may have seen its end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Surroundings for Process {
    fn owns(&self, pid: i32) -> bool {
        pid == self.pid() && std::path::Path::new(&format!("/proc/{pid}/exe")).exists()
    }

    fn changes(&self) -> Result<u64, String> {
        Ok(0)
    }

    /// What the file of its mapping holds there. Executables have data that is written late.
    fn behind(&self, page: u64) -> Behind {
        let address = page * 4096;
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.pid())).unwrap();
        let number = |hex| u64::from_str_radix(hex, 16).unwrap();
        for line in maps.lines() {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let (start, end) = words[0].split_once('-').unwrap();
            if (number(start)..number(end)).contains(&address) && words.get(5).is_some_and(|at| at.starts_with('/')) {
                let mut bytes = vec![0; 4096];
                let offset = number(words[2]) + address - number(start);
                let file = fs::File::open(words[5]).unwrap();
                // Beyond the file's end are zeros.
                file.read_at(&mut bytes, offset).unwrap();
                return Behind::Page(bytes.into());
            }
        }
        Behind::Mapping
    }

    fn exchanged(&self) -> Exchanged {
        Exchanged {
            sent: self.sent.load(Ordering::SeqCst),
            read: self.read.load(Ordering::SeqCst),
        }
    }

    fn before_it_runs(&self) -> Result<(), String> {
        Ok(())
    }
}

impl Process {
    fn start(before: &str) -> Self {
        let mut child = Command::new("setpriv")
            .args(["--no-new-privs", "python3", "-c", PROGRAM])
            .env("BEFORE", before)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let port = line.trim().parse().unwrap();
        Self {
            child,
            port,
            connection: TcpStream::connect(("127.0.0.1", port)).unwrap(),
            sent: AtomicU64::new(0),
            read: AtomicU64::new(0),
        }
    }

    fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Has it run code. Returns what that evaluates to.
    fn run(&self, code: &str) -> String {
        let message = [&u32::try_from(code.len()).unwrap().to_be_bytes(), code.as_bytes()].concat();
        (&self.connection).write_all(&message).unwrap();
        self.sent.fetch_add(message.len() as u64, Ordering::SeqCst);
        let mut length = [0; 4];
        (&self.connection).read_exact(&mut length).unwrap();
        let mut answer = vec![0; u32::from_be_bytes(length) as usize];
        (&self.connection).read_exact(&mut answer).unwrap();
        self.read.fetch_add(4 + answer.len() as u64, Ordering::SeqCst);
        String::from_utf8(answer).unwrap()
    }

    /// Saves its point, as soon as it is at rest.
    fn save(&self) -> Result<Point, Unfit> {
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            match Point::save(self.pid(), self.port, self) {
                Err(Unfit::Busy(_)) if Instant::now() < until => thread::sleep(Duration::from_millis(1)),
                saved => {
                    let (point, told) = saved?;
                    thread::spawn(move || let_all_go(&told));
                    return Ok(point);
                }
            }
        }
    }
}

/// Puts it back, as soon as its threads stop: others may have the processors.
fn back(point: &mut Point, process: &Process) -> Result<usize, Unfit> {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        match point.rewind(process) {
            Err(Unfit::Busy(_)) if Instant::now() < until => {}
            done => return done,
        }
    }
}

/// Lets calls go until the process ends.
fn let_all_go(told: &ToldCalls) {
    loop {
        poll(&mut [PollFd::new(told.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE).unwrap();
        if told.let_go().unwrap() == Waiting::Ended {
            return;
        }
    }
}

/// All that the program says of itself.
const PROBE: &str = "(held['count'], held['list'], sum(held['buffer']), os.getcwd(), os.listdir('/proc/self/fd'), \
                      os.lseek(file.fileno(), 0, 1), threading.active_count(), signal.pthread_sigmask(0, []), \
                      sorted(globals()), len(open('/proc/self/maps').readlines()) > 0, os.environ.get('NEW'))";

#[test]
fn what_a_call_leaves_in_memory_is_gone_after_it() {
    let process = Process::start("");
    let mut point = process.save().unwrap();
    let before = process.run(PROBE);
    back(&mut point, &process).unwrap();
    for effect in [
        "held['count'] += 1",
        "held['list'].extend(range(1000))",
        "held['buffer'][:] = b'x' * (1 << 20)",
        "held['buffer'][5] = 1; raise_later = 1",
        "import json; json.new = 1",
        "os.environ['NEW'] = 'secret'",
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])",
        // Memory that the call maps, and keeps.
        "big = bytearray(8 << 20); big[:] = b'y' * len(big)",
        "many = [bytearray(3000) for _ in range(2000)]",
        // Memory that is mapped only, and memory whose protection changes.
        "area = mmap.mmap(-1, 1 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS); area[0] = 7",
        "r, w = os.pipe(); os.write(w, b'x'); os.read(r, 1); os.close(r); os.close(w)",
        "open('/proc/self/status').read()",
        "os.write(outer, b'abc'); os.read(inner, 3)",
        "left.send(b'abc'); right.recv(3)",
        "os.eventfd_write(counter, 3); os.eventfd_read(counter)",
        "time.sleep(0.01)",
        "ctypes.CDLL(None).sbrk(ctypes.c_long(1 << 20))",
    ] {
        let answer = process.run(effect);
        assert!(!answer.starts_with("failed"), "{effect}: {answer}");
        back(&mut point, &process).unwrap_or_else(|e| panic!("{effect}: {e:?}"));
        assert_eq!(process.run(PROBE), before, "{effect}");
        back(&mut point, &process).unwrap_or_else(|e| panic!("probe after {effect}: {e:?}"));
    }
}

#[test]
fn what_cannot_be_undone_makes_a_process_unfit() {
    for (effect, kind) in [
        // The kernel does not show these.
        ("os.chdir('/tmp')", "call"),
        ("os.umask(0o123)", "call"),
        ("signal.signal(signal.SIGUSR1, lambda *_: None)", "call"),
        ("signal.setitimer(signal.ITIMER_REAL, 1000)", "call"),
        ("signal.alarm(1000)", "call"),
        ("signal.siginterrupt(signal.SIGUSR2, True)", "call"),
        ("os.nice(1)", "call"),
        ("os.sched_setaffinity(0, {0})", "call"),
        ("__import__('resource').setrlimit(7, (99, 99))", "call"),
        ("ctypes.CDLL(None).prctl(15, b'other')", "call"),
        ("ctypes.CDLL(None).prctl(1, 9)", "call"),
        ("ctypes.CDLL(None).sigaltstack(bytes(range(24)), 0)", "call"),
        ("ctypes.CDLL(None).shmget(0, 4096, 0o1600)", "call"),
        ("ctypes.CDLL(None).mlock(ctypes.c_void_p(id(held)), 8)", "call"),
        (
            "ctypes.CDLL(None).madvise(ctypes.c_void_p(id(held) & ~4095), 4096, 10)",
            "call",
        ),
        // Files, other processes, threads, the network.
        ("open('/tmp/left-behind', 'w').close()", "call"),
        ("os.mkdir('/tmp/left-behind-too')", "call"),
        ("os.utime('/tmp')", "call"),
        ("os.fork() or os._exit(0)", "call"),
        ("os.system('true')", "call"),
        ("os.posix_spawn('/bin/sleep', ['sleep', '100'], {})", "call"),
        ("threading.Thread(target=int).start()", "call"),
        (
            "threading.Thread(target=time.sleep, args=[100], daemon=True).start()",
            "call",
        ),
        ("socket.socket()", "call"),
        ("socket.create_connection(listener.getsockname())", "call"),
        (
            "connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)",
            "call",
        ),
        ("mmap.mmap(-1, 4096)", "call"),
        ("os.memfd_create('x')", "call"),
        ("os.close(file.fileno())", "call"),
        ("os.dup2(inner, 40)", "call"),
        ("os.kill(os.getpid(), 0)", "call"),
        // Descriptors say what happened to them.
        ("opened = open('/proc/self/status')", "descriptors"),
        ("file.read(1)", "descriptors"),
        ("os.lseek(file.fileno(), 0, 2)", "descriptors"),
        ("os.write(outer, b'x')", "descriptors"),
        ("left.send(b'x')", "descriptors"),
        ("os.eventfd_write(counter, 3)", "descriptors"),
        ("__import__('fcntl').fcntl(inner, 4, os.O_NONBLOCK)", "descriptors"),
        ("os.set_inheritable(inner, True)", "descriptors"),
        // What the kernel keeps of an interrupted call, and of advice for a file.
        ("ctypes.CDLL(None).syscall(219)", "call"),
        ("os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)", "call"),
        // A flag of the processor that no tracer sets: pushf, pop, xor, push, popf, ret.
        (
            "code = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 7); \
             code.write(bytes.fromhex('9c583500002000509dc3')); \
             ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()",
            "threads",
        ),
        // Control messages may leave the answer in a queue of errors.
        ("left.sendmsg([b'x']) and right.recv(1)", "call"),
        // The kernel's own code.
        (
            "at, end = [int(x, 16) for l in open('/proc/self/maps') if '[vdso]' in l \
             for x in l.split()[0].split('-')]; c = ctypes.CDLL(None); \
             c.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(end - at), 3); ctypes.memset(end - 1, 0, 1); \
             c.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(end - at), 5)",
            "memory",
        ),
        // Mappings in too many places.
        (
            "areas = [mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 1 + 2 * (i % 2)) \
             for i in range(2000)]; del areas[0:1000:2]",
            "memory",
        ),
        // Memory that was there is somewhere else.
        ("held['buffer'].extend(bytes(1 << 20))", "memory"),
        // A thread that ends.
        ("waiting.set(); time.sleep(0.1)", "threads"),
    ] {
        let process = Process::start("");
        let mut point = process.save().unwrap();
        let answer = process.run(effect);
        assert!(!answer.starts_with("failed"), "{effect}: {answer}");
        let unfit = back(&mut point, &process).map(drop).expect_err(effect);
        assert_eq!(unfit.kind(), kind, "{effect}: {unfit:?}");
        // It runs, unless a part of it was put back.
        if kind != "memory" {
            assert_eq!(process.run("6 * 7"), "42", "{effect}");
        }
    }
}

#[test]
fn an_end_of_the_heap_that_no_mapping_shows_makes_a_process_unfit() {
    // The allocator gets so much that it moves the end neither up nor down in the call. Reset would put that back.
    let process = Process::start(
        "c = ctypes.CDLL(None); c.syscall.restype = ctypes.c_long; c.mallopt(-1, 1 << 30); c.mallopt(-2, 16 << 20)\n\
         for _ in range(20): c.malloc(100000)",
    );
    let mut point = process.save().unwrap();
    let answer = process.run(
        "end = c.syscall(12, ctypes.c_long(0)); c.syscall(12, ctypes.c_long(end + (1 << 20))); \
         c.munmap(ctypes.c_long(end), ctypes.c_long(1 << 20))",
    );
    assert_eq!(answer, "done");
    let unfit = back(&mut point, &process).map(drop).unwrap_err();
    assert_eq!(unfit.kind(), "memory", "{unfit:?}");
}

#[test]
fn what_cannot_be_saved_is_refused() {
    for (before, kind) in [
        ("signal.setitimer(signal.ITIMER_REAL, 1000)", "timers"),
        ("os.fork() or (time.sleep(100), os._exit(0))", "threads"),
        ("shared = mmap.mmap(-1, 4096)", "memory"),
        ("other = open('/tmp/rewind-written', 'a')", "descriptors"),
        (
            "other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
            "descriptors",
        ),
        (
            "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)",
            "descriptors",
        ),
        ("ctypes.CDLL(None).inotify_init()", "descriptors"),
        // The kernel's own files keep what was read of them.
        ("other = open('/proc/self/status')", "descriptors"),
        ("ctypes.CDLL(None).timerfd_create(1, 0)", "descriptors"),
        ("left.send(b'x')", "descriptors"),
        ("os.write(outer, bytes(5000))", "descriptors"),
        ("big = b'x' * (64 << 20)", "memory"),
        (
            "signal.pthread_sigmask(0, [10]); signal.pthread_kill(threading.main_thread().ident, 10)",
            "signals",
        ),
    ] {
        let process = Process::start(before);
        let unfit = process.save().map(drop).expect_err(before);
        assert_eq!(unfit.kind(), kind, "{before}: {unfit:?}");
        // It serves as before.
        assert_eq!(process.run("6 * 7"), "42", "{before}");
    }
}

#[test]
fn bytes_that_are_under_way_make_a_process_unfit() {
    // An answer behind the answer, for whoever comes next.
    let process = Process::start("");
    let mut point = process.save().unwrap();
    process.run("connection.sendall((4).to_bytes(4, 'big') + b'donepoison')");
    assert_eq!(back(&mut point, &process).unwrap_err().kind(), "descriptors");
    // A request that it has not read.
    let process = Process::start("");
    let mut point = process.save().unwrap();
    process.run("threading.active_count()");
    (&process.connection).write_all(&[0]).unwrap();
    let unfit = back(&mut point, &process).unwrap_err();
    assert_eq!(unfit.kind(), "descriptors", "{unfit:?}");
}

#[test]
fn what_lies_in_a_pipe_may_stay_there() {
    let process = Process::start("os.write(outer, b'lock')");
    let mut point = process.save().unwrap();
    process.run("os.write(outer, os.read(inner, 4))");
    back(&mut point, &process).unwrap();
    process.run("os.write(outer, os.read(inner, 4)[::-1])");
    assert_eq!(back(&mut point, &process).unwrap_err().kind(), "descriptors");
}

#[test]
fn memory_that_a_fork_wipes_is_empty_and_stays_so() {
    let process = Process::start(
        "libc = ctypes.CDLL(None); libc.mmap.restype = ctypes.c_void_p; \
         at = libc.mmap(None, ctypes.c_size_t(4096), 3, 0x22, -1, 0); \
         libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(4096), 18); ctypes.memmove(at, b'key', 3)",
    );
    let flags = "[l for l in open('/proc/self/smaps').read().split('VmFlags')[\
                 [i for i, l in enumerate(open('/proc/self/smaps').read().split('VmFlags')) \
                 if f'{at:x}-' in l][0] + 1].split('\\n')][0]";
    let mut point = process.save().unwrap();
    assert_eq!(process.run("ctypes.string_at(at, 3)"), "b'key'");
    back(&mut point, &process).unwrap();
    assert_eq!(process.run("ctypes.string_at(at, 3)"), r"b'\x00\x00\x00'");
    // Mapped anew, it is wiped no more.
    let anew = "libc.mmap(ctypes.c_void_p(at), ctypes.c_size_t(4096), 3, 0x32, -1, 0) == at";
    assert_eq!(process.run(anew), "True");
    assert!(!process.run(flags).contains(" wf"));
    back(&mut point, &process).unwrap();
    let now = process.run(flags);
    assert!(now.contains(" wf"), "{now}");
}

#[test]
fn registers_of_the_processor_s_extensions_go_back() {
    let process = Process::start("");
    let mut point = process.save().unwrap();
    for _ in 0..200 {
        assert_eq!(process.run("sum(i * 0.5 for i in range(100))"), "2475.0");
        assert_eq!(
            process.run("held.__setitem__('count', held['count'] + 1) or held['count']"),
            "1"
        );
        back(&mut point, &process).unwrap();
    }
}

/// A process that ends while it is looked at is an error, and nothing hangs.
#[test]
fn a_process_that_ends_is_unfit() {
    let mut process = Process::start("");
    let mut point = process.save().unwrap();
    process.child.kill().unwrap();
    process.child.wait().unwrap();
    back(&mut point, &process).unwrap_err();
    Point::save(process.pid(), process.port, &process).unwrap_err();
}

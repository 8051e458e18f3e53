//! The oracle of lazy restore: stock CRIU restores the very checkpoint eagerly, from its own images, and all memory of
//! every process is the same, byte for byte. Nothing is excused, since nothing of the function runs: it is stopped
//! (SIGSTOP) when the checkpoint is taken, so each copy comes back stopped, before its first instruction.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rekindle_e2e::eager::{self, Eager, Exported};
use rekindle_e2e::host::{self, PAGE};
use rekindle_e2e::memory::{Comparison, areas, change_byte, compare, sealed};
use rekindle_e2e::s3::{Line, ObjectStore};
use rekindle_e2e::{Folder, Platform, until};
use rekindle_worker::snapshots::CaptureNotes;

const LIMIT: Duration = Duration::from_secs(30);

/// A server with memory of many kinds, threads and a child. Before the snapshot its hook starts a guard outside of the
/// function's process tree, which stops the server once the hook's connection is closed. Until then the guard holds a
/// connection of its own open, as the checkpoint waits for connections to go. Without restartable sequences the kernel
/// has no place to write to in a stopped process.
const STOPPED: &str = r#"
import ctypes, mmap, os, random, signal, socket, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT = int(os.environ["PORT"])
libc = ctypes.CDLL(None, use_errno=True)
libc.mremap.restype = ctypes.c_void_p
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]

def bytes_of(seed, size):
    return random.Random(seed).randbytes(size)

def address(mapping):
    return ctypes.addressof(ctypes.c_char.from_buffer(mapping))

noise = [bytes_of(n, 3000) for n in range(3000)]
text = b"the same words again and again; " * 40000
zeros = bytearray(4 << 20)
sparse = bytearray(8 << 20)
for at in range(0, len(sparse), 5 * 4096):
    sparse[at] = 1

# Given back to the kernel in part: those pages are zero again.
freed = mmap.mmap(-1, 2 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
freed.write(bytes_of("freed", 2 << 20))
freed.madvise(mmap.MADV_DONTNEED, 512 << 10, 512 << 10)
# Written, then protected from everybody.
sealed = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
sealed.write(bytes_of("sealed", 1 << 20))
sealed_at = address(sealed)
assert libc.mprotect(ctypes.c_void_p(sealed_at), 1 << 20, 0) == 0
# Read-only by now.
constant = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
constant.write(bytes_of("constant", 1 << 20))
assert libc.mprotect(ctypes.c_void_p(address(constant)), 1 << 20, mmap.PROT_READ) == 0
# Grown and moved.
small = mmap.mmap(-1, 256 << 10, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
small.write(bytes_of("moved", 256 << 10))
moved = libc.mremap(address(small), 256 << 10, 8 << 20, 1)
assert moved not in (None, 2 ** 64 - 1)
# A file's pages, some of them overwritten in private.
with open("/app/server.py", "rb") as source:
    overlaid = mmap.mmap(source.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
overlaid[10:20] = b"overlaid!!"
# Shared with the child.
shared = mmap.mmap(-1, 1 << 20)
shared.write(bytes_of("shared", 1 << 20))

child = os.fork()
if child == 0:
    for at in range(0, len(sparse), 50 * 4096):
        sparse[at] = 2
    noise[::7] = [bytes_of(-n, 3000) for n in range(len(noise[::7]))]
    shared[:4096] = bytes_of("child", 4096)
    while True:
        signal.pause()

def wait_for_ever(size):
    held = bytes_of(size, size)
    threading.Event().wait()
for size in (100_000, 1_000_000):
    threading.Thread(target=wait_for_ever, args=(size,), daemon=True).start()

def state_of(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0]

def hook_connections():
    with open("/proc/net/tcp") as table:
        rows = [row.split() for row in table.readlines()[1:]]
    return [r for r in rows if r[3] in ("01", "08") and f"{PORT:04X}" in (r[1][-4:], r[2][-4:])]

def held_connection():
    listener = socket.create_server(("127.0.0.1", 0))
    near = socket.create_connection(listener.getsockname())
    far, _ = listener.accept()
    return near, far

def start_guard():
    server = os.getpid()
    ready, told = os.pipe()
    between = os.fork()
    if between == 0:
        if os.fork() == 0:
            # Not the hook's own connection, which is to end.
            for fd in range(3, 256):
                if fd != told:
                    try:
                        os.close(fd)
                    except OSError:
                        pass
            held = held_connection()
            os.write(told, b"!")
            while hook_connections():
                time.sleep(0.001)
            os.kill(server, signal.SIGSTOP)
            while state_of(server) != "T":
                time.sleep(0.001)
        os._exit(0)
    os.waitpid(between, 0)
    os.read(ready, 1)
    os.close(ready)
    os.close(told)

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *arguments):
        pass
    def answer(self, body):
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True
    def do_GET(self):
        libc.mprotect(ctypes.c_void_p(sealed_at), 1 << 20, mmap.PROT_READ)
        self.answer(str(child).encode())
    def do_POST(self):
        start_guard()
        self.answer(b"")

ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
"#;

const SETTINGS: &str = "memory = \"256MiB\"\ntimeout = \"120s\"\nconcurrency = 2\n\
    hooks = { before_snapshot = \"/stop\" }\n\
    [env]\nGLIBC_TUNABLES = \"glibc.pthread.rseq=0\"";

#[test]
fn a_lazy_restore_gives_the_memory_that_an_eager_one_gives_byte_for_byte() {
    let store = ObjectStore::start();
    let platform = Platform::start_with(store.options());
    let folder = Folder::server("stopped", SETTINGS, STOPPED);

    // The dump is taken from the worker while the store keeps the snapshot's first chunk waiting.
    store.set(Line::ChunksWait);
    let (version, images) = thread::scope(|s| {
        let deploy = s.spawn(|| platform.deploy(&folder));
        until("a chunk on its way", LIMIT, || {
            (store.kept() > 0 || deploy.is_finished()).then_some(())
        });
        if deploy.is_finished() {
            panic!("the deploy ended without a chunk: {:?}", deploy.join());
        }
        let images = eager::copy_dump(&platform);
        store.set(Line::Good);
        (deploy.join().unwrap(), images)
    });

    // What is exported is what CRIU wrote, file by file, and what stock CRIU restores here.
    let exported = Exported::of(&store, &version);
    for entry in std::fs::read_dir(images.path()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".img") {
            let [was, is] = [images.path(), &exported.images].map(|d| std::fs::read(d.join(&name)).unwrap());
            assert!(
                is_as_far_as_kept(&was, &is, name.starts_with("pages-")),
                "{name} is exported otherwise than CRIU wrote it"
            );
        }
    }

    let eager = Eager::restore(&platform, &exported.manifest, &exported.images);
    let original = platform.instances_of("stopped").pop().unwrap();
    let original = host::processes(&platform, original.id.as_str());
    thread::scope(|s| {
        let call = s.spawn(|| platform.fresh("restored", "stopped", "/").ok());
        let lazy = until("the lazily restored processes, stopped", LIMIT, || {
            let others = platform.instances_of("stopped").into_iter();
            let mut found = others.map(|i| host::processes(&platform, i.id.as_str()));
            found.find(|p| *p != original && p.keys().eq(original.keys()) && is_at_rest(p))
        });
        let eager = eager.processes();
        until("the eagerly restored processes, stopped", LIMIT, || {
            is_at_rest(&eager).then_some(())
        });
        // But for the generators of random numbers, which a copy has of its own: the others get what it was given.
        let generators = CaptureNotes::read(images.path()).unwrap().generators;
        let mut changed = 0;
        for process in &generators {
            let inner = i32::try_from(process.pid).unwrap();
            for write in process.generators.iter().flat_map(|found| &found.writes) {
                let address = usize::try_from(write.address).unwrap();
                let given = host::read(lazy[&inner], address, write.len());
                changed += usize::from(given != host::read(eager[&inner], address, write.len()));
                for others in [&eager, &original] {
                    host::write(others[&inner], address, &given);
                }
            }
        }
        assert!(changed > 0, "Python's module random has one: {generators:?}");
        assert_same("eager", &eager, "lazy", &lazy);
        assert_same("original", &original, "lazy", &lazy);
        assert_one_changed_byte_is_told(&eager, &lazy);

        // And it is alive: it makes readable again what nobody could read.
        let [hidden, shown] = [&eager, &lazy].map(|processes| processes[&server(processes)]);
        kill(Pid::from_raw(shown), Signal::SIGCONT).unwrap();
        let answer = call.join().unwrap();
        assert_eq!(answer.start(), "restored");
        assert!(lazy.contains_key(&answer.text().parse().unwrap()), "{}", answer.text());
        let pages = sealed(hidden);
        assert!(pages.len() * PAGE >= 1 << 20, "only {} pages are sealed", pages.len());
        for (address, page) in pages {
            assert!(
                page == host::read(shown, address, PAGE),
                "{address:#x}, sealed, differs"
            );
        }
    });
}

/// Whether a file is what it was. Of memory, the worker punches out of the dump what it has read: such pages read as
/// zero when the dump is copied. They are compared with the memory of the original below.
fn is_as_far_as_kept(was: &[u8], is: &[u8], memory: bool) -> bool {
    let same = |(was, is): (&[u8], &[u8])| was == is || memory && was.iter().all(|b| *b == 0);
    was.len() == is.len() && std::iter::zip(was.chunks(PAGE), is.chunks(PAGE)).all(same)
}

/// The function's first process, by its pid inside.
fn server(processes: &BTreeMap<i32, i32>) -> i32 {
    *processes.keys().next().unwrap()
}

/// Whether nothing of the function runs: the server is stopped, its child waits for a signal.
fn is_at_rest(processes: &BTreeMap<i32, i32>) -> bool {
    processes.len() == 2 && host::is_stopped(processes[&server(processes)])
}

#[track_caller]
fn assert_same(one: &str, ours: &BTreeMap<i32, i32>, other: &str, theirs: &BTreeMap<i32, i32>) {
    assert!(ours.keys().eq(theirs.keys()), "{ours:?} {theirs:?}");
    for (inner, pid) in ours {
        let Comparison {
            pages,
            filled,
            differences,
        } = compare(*pid, theirs[inner]);
        assert!(
            differences.is_empty(),
            "process {inner}, {one} against {other}, {pages} pages: {differences:#?}"
        );
        assert!(
            filled * PAGE > 20 << 20,
            "only {filled} of {pages} pages have anything in them"
        );
        println!("process {inner}, {one} against {other}: {pages} pages, {filled} of them filled, all equal");
    }
}

/// The comparison itself: one byte more in one page anywhere is what it tells, and nothing else.
fn assert_one_changed_byte_is_told(eager: &BTreeMap<i32, i32>, lazy: &BTreeMap<i32, i32>) {
    for (inner, pid) in lazy {
        let heap = areas(*pid).into_iter().find(|a| a.access == "rw-p").unwrap();
        let address = heap.start + (heap.end - heap.start) / 2 + 1234 % PAGE;
        change_byte(*pid, address);
        let told = compare(eager[inner], *pid).differences;
        assert!(told.len() == 1 && told[0].contains("1 bytes differ"), "{told:#?}");
        // Back to what it was: 256 steps are none.
        (0..255).for_each(|_| change_byte(*pid, address));
        assert!(compare(eager[inner], *pid).differences.is_empty());
    }
}

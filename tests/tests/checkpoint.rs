//! What a function does while it is checkpointed: it stands still, or there is no snapshot. What CRIU opens again as
//! root at each restore is what the function had open.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use rekindle_e2e::{Folder, shared};
use serde_json::Value;

/// Keeps a file open whose path somebody is about to exchange for a link to what only root may open; its answer says
/// what it has open.
/// `ballast` has the checkpoint take a while.
const HOLDER: &str = r#"
import os, threading, time

PATH, LINK = "/tmp/x", "/tmp/l"
with open(PATH, "w") as made:
    made.write("its own")
os.chmod(PATH, 0o444)
fd = os.open(PATH, os.O_RDONLY)
os.symlink("/proc/1/maps", LINK)
ballast = os.urandom(48 << 20)

def traced():
    with open("/proc/501/status") as status:
        return "TracerPid:\t0\n" not in status.read()

def exchange_when_traced(delay):
    while not traced():
        time.sleep(0.001)
    time.sleep(delay)
    os.rename(LINK, PATH)

def handler(event, context):
    os.lseek(fd, 0, 0)
    return {"statusCode": 200, "body": os.readlink(f"/proc/self/fd/{fd}") + "\n" + os.read(fd, 600).decode()}
"#;

fn deploy(name: &str, more: &str) -> Option<String> {
    let settings = "memory = \"256MiB\"\nmax_instances = 4\n[[warmup]]\npath = \"/\"";
    let folder = Folder::python(name, settings, &format!("{HOLDER}\n{more}"));
    shared().try_deploy(&folder).unwrap().snapshot_error
}

/// Ends a function, which would keep a processor busy.
fn let_go(name: &str) {
    shared().delete(name).unwrap();
}

#[test]
fn an_orphan_that_waits_for_its_checkpoint_stands_still_as_the_others() {
    for (at, delay) in ["0.0", "0.02", "0.1"].into_iter().enumerate() {
        let name = format!("swap-{at}");
        let orphan = format!(
            "if os.fork() == 0:\n    if os.fork():\n        os._exit(0)\n    try:\n        \
             exchange_when_traced({delay})\n    finally:\n        \
             os._exit(0)\nos.wait()\n"
        );
        let told = deploy(&name, &orphan);
        assert_eq!(told, None, "after {delay} s");
        for _ in 0..2 {
            let answer = shared().fresh("restored", &name, "/").ok();
            assert_eq!(answer.start(), "restored");
            let text = answer.text();
            let (path, content) = text.split_once('\n').unwrap();
            assert!(path.starts_with("/tmp/"), "{path} after {delay} s");
            assert_eq!(content, "its own", "{path} after {delay} s");
        }
        let_go(&name);
    }
}

#[test]
fn an_orphan_whose_first_thread_has_ended_is_found_as_well() {
    // It is what the kernel shows as a zombie once its first thread is gone.
    let orphan = r#"
ours, theirs = os.pipe()
if os.fork() == 0:
    if os.fork():
        os._exit(0)
    os.write(theirs, b"%d" % os.getpid())
    threading.Thread(target=lambda: (exchange_when_traced(0.02), os._exit(0))).start()
    import ctypes
    ctypes.CDLL(None).pthread_exit(None)
os.wait()
orphan = int(os.read(ours, 9))
while ") Z " not in open(f"/proc/{orphan}/stat").read():
    time.sleep(0.001)
"#;
    let told = deploy("swap-hidden", orphan).unwrap_or_default();
    assert!(told.contains("the first thread of a process has ended"), "{told}");
    assert!(told.contains("cannot move to another worker"), "{told}");
    let answer = shared().fresh("booted", "swap-hidden", "/").ok();
    assert_eq!(answer.text(), "/tmp/x\nits own");
}

#[test]
fn a_child_that_exchanges_files_all_the_time_stands_still_with_its_parent() {
    // A rename at any moment before the checkpoint is the function's own business, one during it would be seen by every
    // copy.
    let child = "READY = \"/tmp/ready\"\nif os.fork() == 0:\n    open(READY, \"w\").close()\n    while True:\n        \
        os.rename(PATH, \"/tmp/aside\")\n        os.rename(LINK, PATH)\n        os.rename(PATH, LINK)\n        \
        os.rename(\"/tmp/aside\", PATH)\n\
        while not os.path.exists(READY):\n    time.sleep(0.001)\n";
    for round in 0..3 {
        let name = format!("swap-child-{round}");
        let told = deploy(&name, child);
        let start = if told.is_none() { "restored" } else { "booted" };
        for _ in 0..2 {
            let answer = shared().fresh(start, &name, "/").ok();
            assert_eq!(answer.start(), start);
            let text = answer.text();
            let (path, content) = text.split_once('\n').unwrap();
            assert!(path.starts_with("/tmp/"), "{path} after {told:?}");
            assert_eq!(content, "its own", "{path} after {told:?}");
        }
        let_go(&name);
    }
}

#[test]
fn links_among_private_files_lead_the_function_where_it_made_them_lead() {
    let code = "import os\nfor folder in ('/tmp', '/dev/shm'):\n    with open(f'{folder}/file', 'w') as made:\n        \
        made.write(folder)\n    \
        os.symlink(f'{folder}/file', f'{folder}/link')\n\
        def handler(event, context):\n    return [open(f'{folder}/link').read() for folder in ('/tmp', '/dev/shm')]\n";
    shared().deploy(&Folder::python("links", "", code));
    for start in ["booted", "restored"] {
        let answer = shared().fresh(start, "links", "/").ok();
        assert_eq!(answer.start(), start);
        assert_eq!(answer.text(), "[\"/tmp\",\"/dev/shm\"]");
    }
}

#[test]
fn a_file_of_the_kernel_s_that_is_open_for_a_moment_costs_no_snapshot() {
    // As clients of Prometheus and psutil have it, some times a second.
    let code = "import rekindle, threading\n@rekindle.before_snapshot\ndef look():\n    \
        seen = open('/proc/self/maps')\n    \
        threading.Timer(0.1, seen.close).start()\ndef handler(event, context):\n    return threading.active_count()\n";
    let version = shared().deploy(&Folder::python("looks", "", code));
    assert!(version.snapshot_error.is_none());
    let answer = shared().fresh("restored", "looks", "/").ok();
    assert_eq!(answer.start(), "restored");

    let kept = "kept = open('/proc/self/maps')\ndef handler(event, context):\n    return 1\n";
    let told = shared().try_deploy(&Folder::python("stares", "", kept)).unwrap();
    let told = told.snapshot_error.unwrap_or_default();
    assert!(
        told.contains("/maps") && told.contains("close it before the snapshot"),
        "{told}"
    );
}

#[test]
fn code_that_begins_with_what_cannot_be_read_costs_the_snapshot_and_not_the_function() {
    // CRIU looks there from inside of the process.
    let cut = "import mmap, os\nfile = os.memfd_create('code')\nos.ftruncate(file, 8192)\n\
        held = mmap.mmap(file, 8192, prot=mmap.PROT_READ | mmap.PROT_EXEC)\nos.ftruncate(file, 0)\n\
        def handler(event, context):\n    return True\n";
    let version = shared().try_deploy(&Folder::python("cuts", "", cut)).unwrap();
    let told = version.snapshot_error.unwrap_or_default();
    assert!(told.contains("first page cannot be read"), "{told}");
    assert_eq!(shared().get("cuts", "/").ok().text(), "true");

    let code = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nlibc.mmap.restype = ctypes.c_void_p\n\
        at = ctypes.c_void_p(libc.mmap(None, 8192, 5, 0x22, -1, 0))\n\
        guarded = libc.madvise(at, 4096, 102) == 0\ndef handler(event, context):\n    return guarded\n";
    let version = shared().try_deploy(&Folder::python("guards", "", code)).unwrap();
    let is_guarded = shared().get("guards", "/").ok().text() == "true";
    let told = version.snapshot_error.unwrap_or_default();
    // Linux has such pages since 6.13.
    assert_eq!(told.contains("first page cannot be read"), is_guarded, "{told}");
}

/// A thread sorts with a key that sorts with a key, and so on, until its stack pointer is a multiple of the page size
/// where it waits. Its answer says whether it is.
const ALIGNED: &str = r#"
import _thread, threading

ballast = bytearray(b"in memory " * (1 << 20))
never = threading.Event()

def stack_pointer(task):
    with open(f"/proc/self/task/{task}/syscall") as call:
        return int(call.read().split()[-2], 16)

def waits_at(depth, end):
    started = _thread.allocate_lock()
    task = []
    started.acquire()
    def down(left):
        if left:
            return sorted([left], key=lambda _: down(left - 1))
        task.append(threading.get_native_id())
        started.release()
        end.acquire()
    threading.Thread(target=down, args=(depth,), daemon=True).start()
    started.acquire()
    while True:
        with open(f"/proc/self/task/{task[0]}/syscall") as call:
            if call.read() != "running\n":
                return task[0]

for depth in range(400):
    end = _thread.allocate_lock()
    end.acquire()
    task = waits_at(depth, end)
    if stack_pointer(task) % 4096 == 0:
        break
    end.release()

def handler(event, context):
    return {"statusCode": 200, "body": str(stack_pointer(task) % 4096)}
"#;

#[test]
fn memory_is_lazy_although_criu_takes_all_of_it_for_a_stack() {
    let folder = Folder::python("aligned", "memory = \"256MiB\"", ALIGNED);
    let version = shared().deploy(&folder);
    assert_eq!(version.snapshot_error, None);
    let snapshot = version.snapshot.unwrap();
    let offset = shared().fresh("restored", "aligned", "/").ok().text();
    assert_eq!(offset, "0", "no thread's stack pointer came to be that of a page");
    let run = shared().directory("run").display().to_string();
    let args = ["snapshot", "inspect", snapshot.id.as_str(), "--json", "--run", &run];
    let shown: Value = shared().cli_json(&args).unwrap();
    let eager = shown["eager_bytes"].as_u64().unwrap();
    assert!(eager < 4 << 20, "{eager} bytes are restored eagerly: {shown}");
}

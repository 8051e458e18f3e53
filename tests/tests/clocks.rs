//! Time in copies of a snapshot. The wall clock is right. The monotonic clocks never go back and know nothing of the
//! time between checkpoint and restore. Timers that were set before go on.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rekindle_e2e::{Folder, Reply, shared};
use serde_json::Value;

/// How long each snapshot lies before it is restored: long against all that a restore takes.
const GAP: Duration = Duration::from_secs(8);
/// The most a monotonic clock may have gone on, from the last reading before the checkpoint to the first after the
/// restore. That covers the rest of the deploy's instance, the restore, a loaded machine.
const GONE_ON_MAX: f64 = 5.0;

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

fn number(body: &Value, key: &str) -> f64 {
    body[key].as_f64().unwrap_or_else(|| panic!("no number {key}: {body}"))
}

/// Deploys, waits, restores: the first answer of a copy, and the seconds between which it was given.
fn restored_after_a_gap(folder: &Folder, name: &str) -> (Reply, f64, f64) {
    shared().deploy(folder);
    thread::sleep(GAP);
    let before = now();
    let answer = shared().fresh("restored", name, "/").ok();
    assert_eq!(answer.start(), "restored");
    (answer, before, now())
}

/// `marked` are readings from before the checkpoint, `read` from after the restore, in seconds.
fn assert_clocks(body: &Value, wall: &[&str], monotonic: &[&str], before: f64, after: f64) {
    let (marked, read) = (&body["marked"], &body["read"]);
    for clock in wall {
        let (then, now) = (number(marked, clock), number(read, clock));
        // A wall clock may be read a millisecond coarser than the other.
        assert!(
            (before - 0.01..=after + 0.01).contains(&now),
            "{clock} shows {now} between {before} and {after}"
        );
        assert!(now - then > GAP.as_secs_f64(), "{clock} knows the gap: {body}");
    }
    for clock in monotonic {
        let went = number(read, clock) - number(marked, clock);
        assert!(
            (0.0..GONE_ON_MAX).contains(&went),
            "{clock} went on by {went} s: {body}"
        );
    }
    assert_eq!(body["backwards"], 0, "{body}");
}

#[test]
fn clocks_and_timers_of_a_python_clone_go_on_from_the_snapshot() {
    let code = r"
import asyncio, threading, time
import rekindle

CLOCKS = {'time': time.time, 'monotonic': time.monotonic, 'perf_counter': time.perf_counter}
for name in ('CLOCK_REALTIME', 'CLOCK_MONOTONIC', 'CLOCK_MONOTONIC_RAW', 'CLOCK_BOOTTIME'):
    CLOCKS[name] = lambda clock=getattr(time, name): time.clock_gettime(clock)
marked, fired, backwards = {}, {}, 0

def read():
    return {name: clock() for name, clock in CLOCKS.items()}

def watch():
    # Looks at the clocks all the time, over checkpoint and restore.
    global backwards
    last = read()
    while True:
        current = read()
        backwards += sum(current[name] < last[name] for name in CLOCKS if name not in ('time', 'CLOCK_REALTIME'))
        last = current
        time.sleep(0.001)

def note(name):
    fired.setdefault(name, []).append(time.monotonic() - marked['monotonic'])

async def sleeper(name, seconds):
    await asyncio.sleep(seconds)
    note(name)

async def sleepers():
    await asyncio.gather(sleeper('asyncio.sleep 1', 1), sleeper('asyncio.sleep 3', 3))

threading.Thread(target=watch, daemon=True).start()

@rekindle.before_snapshot
def mark():
    marked.update(read())
    for seconds in (1, 3):
        timer = threading.Timer(seconds, note, [f'Timer {seconds}'])
        timer.daemon = True
        timer.start()
    threading.Thread(target=asyncio.run, args=[sleepers()], daemon=True).start()

def handler(event, context):
    answer = {'marked': marked, 'read': read(), 'fired at first': dict(fired)}
    limit = time.monotonic() + 15
    while len(fired) < 4 and time.monotonic() < limit:
        time.sleep(0.01)
    return answer | {'fired': fired, 'backwards': backwards}
";
    let (answer, before, after) = restored_after_a_gap(
        &Folder::python("clocks-python", "timeout = \"30s\"", code),
        "clocks-python",
    );
    let body = answer.json();
    let wall = ["time", "CLOCK_REALTIME"];
    let monotonic = [
        "monotonic",
        "perf_counter",
        "CLOCK_MONOTONIC",
        "CLOCK_MONOTONIC_RAW",
        "CLOCK_BOOTTIME",
    ];
    assert_clocks(&body, &wall, &monotonic, before, after);
    for (kind, seconds) in [("Timer", 1), ("Timer", 3), ("asyncio.sleep", 1), ("asyncio.sleep", 3)] {
        assert_fired_once(&body["fired"][format!("{kind} {seconds}")], f64::from(seconds));
    }
}

#[test]
fn clocks_and_timers_of_a_node_clone_go_on_from_the_snapshot() {
    let code = r"
const { performance } = require('node:perf_hooks');
const { setTimeout: sleep } = require('node:timers/promises');
const rekindle = require('rekindle');

const CLOCKS = {
  'Date.now': () => Date.now() / 1e3,
  hrtime: () => Number(process.hrtime.bigint()) / 1e9,
  'performance.now': () => performance.now() / 1e3,
  uptime: () => process.uptime(),
};
const read = () => Object.fromEntries(Object.entries(CLOCKS).map(([name, clock]) => [name, clock()]));
const fired = {};
let marked, ticks = 0, backwards = 0, last = read();

setInterval(() => {
  ticks++;
  const current = read();
  for (const name of ['hrtime', 'performance.now', 'uptime']) if (current[name] < last[name]) backwards++;
  last = current;
}, 10).unref();

rekindle.beforeSnapshot(() => {
  marked = read();
  const note = (name) => (fired[name] ??= []).push(CLOCKS.hrtime() - marked.hrtime);
  for (const seconds of [1, 3]) {
    setTimeout(() => note(`setTimeout ${seconds}`), seconds * 1e3);
    sleep(seconds * 1e3).then(() => note(`sleep ${seconds}`));
  }
});

exports.handler = async () => {
  const answer = { marked, read: read() };
  const before = ticks;
  for (let n = 0; n < 1500 && Object.keys(fired).length < 4; n++) await sleep(10);
  return { ...answer, fired, ticks: ticks - before, backwards };
};
";
    let config = "name = \"clocks-node\"\nruntime = \"node\"\nentry = \"index.handler\"\nmemory = \"256MiB\"\n\
        idle = \"60s\"\ntimeout = \"30s\"\n";
    let folder = Folder::with_config(config).file("index.js", code);
    let (answer, before, after) = restored_after_a_gap(&folder, "clocks-node");
    let body = answer.json();
    assert_clocks(
        &body,
        &["Date.now"],
        &["hrtime", "performance.now", "uptime"],
        before,
        after,
    );
    for (kind, seconds) in [("setTimeout", 1), ("setTimeout", 3), ("sleep", 1), ("sleep", 3)] {
        assert_fired_once(&body["fired"][format!("{kind} {seconds}")], f64::from(seconds));
    }
    // Not all those that were missed in the gap at once: it would have been 800.
    let ticks = number(&body, "ticks");
    assert!(
        (1.0..600.0).contains(&ticks),
        "the interval ticked {ticks} times: {body}"
    );
}

/// Once, not early, and late by no more than a restore takes.
#[track_caller]
fn assert_fired_once(times: &Value, due: f64) {
    let times = times.as_array().unwrap_or_else(|| panic!("never fired: {times}"));
    assert_eq!(times.len(), 1, "{times:?}");
    let at = times[0].as_f64().unwrap();
    assert!(
        (due - 0.01..due + GONE_ON_MAX).contains(&at),
        "due after {due} s, fired after {at} s"
    );
}

/// Timers of the processor time of the process and of a thread, which send signals, as HAProxy's watchdog does.
const PROCESSOR_TIME: &str = r#"
import ctypes, os, queue, signal, struct, threading, time

libc = ctypes.CDLL(None, use_errno=True)
# Each signal leaves its number there, in whatever thread it arrives.
arrived, arrives = os.pipe()
for end in (arrived, arrives):
    os.set_blocking(end, False)
signal.set_wakeup_fd(arrives)

def numbers():
    try:
        return os.read(arrived, 9999)
    except BlockingIOError:
        return b""

def timer(clock, number):
    """Each 5 ms of processor time."""
    signal.signal(number, lambda number, frame: None)
    event = ctypes.create_string_buffer(struct.pack("Qii", 0, number, 0), 64)
    made = ctypes.c_void_p()
    assert libc.timer_create(clock, event, ctypes.byref(made)) == 0, os.strerror(ctypes.get_errno())
    assert libc.timer_settime(made, 0, (ctypes.c_long * 4)(0, 5_000_000, 0, 5_000_000), None) == 0

def burn():
    while asked.get():
        end = time.thread_time() + 0.1
        while time.thread_time() < end:
            pass
        done.put(True)

asked, done = queue.Queue(), queue.Queue()
burner = threading.Thread(target=burn, daemon=True)
burner.start()
of_thread = ctypes.c_int()
assert libc.pthread_getcpuclockid(ctypes.c_ulong(burner.ident), ctypes.byref(of_thread)) == 0
timer(of_thread, signal.SIGRTMIN + 1)
timer(time.CLOCK_PROCESS_CPUTIME_ID, signal.SIGRTMIN + 2)
KEPT = None

def handler(event, context):
    numbers()
    asked.put(True)
    done.get()
    seen = numbers()
    return [seen.count(signal.SIGRTMIN + 1), seen.count(signal.SIGRTMIN + 2)]
"#;

#[test]
fn timers_of_a_function_s_own_processor_time_go_on_in_copies() {
    // A restore program makes the one, CRIU the other.
    let by_criu = PROCESSOR_TIME.replace("KEPT = None", "KEPT = os.pidfd_open(os.getpid())");
    for (name, code) in [("watchdog", PROCESSOR_TIME), ("watchdog-criu", by_criu.as_str())] {
        let version = shared().deploy(&Folder::python(name, "", code));
        assert_eq!(version.snapshot_error, None, "{name}");
        for start in ["booted", "restored"] {
            let answer = shared().fresh(start, name, "/").ok();
            assert_eq!(answer.start(), start, "{name}");
            let counted: [u64; 2] = serde_json::from_value(answer.json()).unwrap();
            assert!(
                counted.iter().all(|count| (1..=40).contains(count)),
                "{name} {start}: {counted:?}"
            );
        }
    }
}

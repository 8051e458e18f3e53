//! Support for this crate's tests: stores, and dumps made by the real CRIU.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rekindle_criu::images::testing::{Run, framed, mm_image, pagemap_image, varint};
pub(crate) use rekindle_s3_servers::{TestStore, Wire, config, impatient, noise};
use rekindle_wire::internal::LayerRef;
use rekindle_wire::{SnapshotId, VersionNumber};

use crate::capture::{CaptureMeta, CaptureOptions};
use crate::manifest::Origin;

/// Prints why a test is skipped. Fails instead where every test must run.
fn skipped(reason: &str) {
    assert!(std::env::var("REKINDLE_REQUIRE_ALL").as_deref() != Ok("1"), "{reason}");
    println!("skipped: {reason}");
}

pub(crate) fn meta() -> CaptureMeta {
    let layer = LayerRef {
        digest: "0".repeat(64),
        tar_bytes: 1,
    };
    CaptureMeta {
        id: SnapshotId::generate(),
        origin: Origin::Function {
            function: "hello".parse().unwrap(),
            version: VersionNumber(1),
            rootfs: layer.clone(),
            layer,
        },
        criu: "4.2.1".to_owned(),
        frozen_ms: 12.5,
        base: None,
        seal: None,
        extra: Vec::new(),
        options: CaptureOptions::default(),
    }
}

const CRIU: &str = "/usr/local/lib/rekindle/criu/criu";

/// 8 MiB of distinct pages, 2 MiB of noise, 4 MiB that were touched but are zero. A child process shares all of it and
/// has changed a little. There is also a shared mapping, whose pages are never lazy.
const PROGRAM: &str = r#"
import mmap, os, random, sys, time
pattern = bytearray(8 << 20)
for at in range(0, len(pattern), 4096):
    pattern[at:at + 16] = at.to_bytes(8, "little") * 2
noise = bytearray(random.Random(1).randbytes(2 << 20))
zeros = mmap.mmap(-1, 4 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, len(zeros), 4096):
    zeros[at] = 1
for at in range(0, len(zeros), 4096):
    zeros[at] = 0
shared = mmap.mmap(-1, 1 << 16)
shared[:5] = b"share"
ready = sys.argv[1]
if os.fork() == 0:
    pattern[0:5] = b"child"
    open(ready + ".child", "w").close()
else:
    open(ready + ".parent", "w").close()
while True:
    time.sleep(1)
"#;

/// A program of two processes, killed on drop.
struct RunningProgram(Child);

impl Drop for RunningProgram {
    fn drop(&mut self) {
        // The child shares its parent's process group, which is the parent's own because of setsid.
        let group = nix::unistd::Pid::from_raw(i32::try_from(self.0.id()).unwrap());
        let _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
        drop(self.0.wait());
    }
}

/// Dumps the test program with CRIU into `dir`. Prints why and returns `None` where that is impossible.
pub(crate) fn criu_dump(dir: &Path) -> Option<()> {
    if !Path::new(CRIU).exists() || !nix::unistd::geteuid().is_root() {
        skipped(&format!("needs root and CRIU at {CRIU} (scripts/install-criu.sh)"));
        return None;
    }
    let work = tempfile::tempdir().unwrap();
    let ready = work.path().join("ready");
    let program = Command::new("setsid")
        .args(["python3", "-c", PROGRAM])
        .arg(&ready)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let program = RunningProgram(program);
    let until = Instant::now() + Duration::from_secs(20);
    while !(work.path().join("ready.parent").exists() && work.path().join("ready.child").exists()) {
        assert!(Instant::now() < until, "the program did not start");
        std::thread::sleep(Duration::from_millis(10));
    }
    let dump = Command::new(CRIU)
        .args(["dump", "--leave-running", "--log-file", "dump.log", "-t"])
        .arg(program.0.id().to_string())
        .arg("-D")
        .arg(dir)
        .output()
        .unwrap();
    let log = std::fs::read_to_string(dir.join("dump.log")).unwrap_or_default();
    assert!(dump.status.success(), "{log}");
    Some(())
}

/// A dump laid out as CRIU does it, of one process (pid 7): `lazy` from address 0x10000 on, then one eager page. For
/// tests of the code around a dump. Tests that run CRIU check whether the dump matches CRIU's own.
pub(crate) fn small_dump(dir: &Path, lazy: &[u8]) {
    let mut pages = dump_without_pages(dir, lazy.len() as u64 / 4096);
    pages.write_all(lazy).unwrap();
    pages.write_all(&[0x5a; 4096]).unwrap();
}

/// Such a dump without its memory: this many lazy pages, plus the eager one, are still to be written.
pub(crate) fn dump_without_pages(dir: &Path, pages: u64) -> File {
    std::fs::create_dir_all(dir).unwrap();
    let first = 0x10;
    let runs = [
        Run {
            first,
            pages,
            lazy: true,
        },
        Run {
            first: first + pages,
            pages: 1,
            lazy: false,
        },
    ];
    let write = |name: &str, bytes: Vec<u8>| std::fs::write(dir.join(name), bytes).unwrap();
    write("inventory.img", noise(80, 1));
    write("pstree.img", framed(0x5027_3030, &[varint(1, 7)]));
    write("mm-7.img", mm_image(&[(first * 4096, (first + pages + 1) * 4096, 1)]));
    write("pagemap-7.img", pagemap_image(&runs));
    write("dump.log", b"not part of the snapshot".to_vec());
    File::create(dir.join("pages-1.img")).unwrap()
}

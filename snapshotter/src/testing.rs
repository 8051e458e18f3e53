//! For this crate's tests: a store served in this process, and dumps made by the real CRIU.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rekindle_wire::internal::LayerRef;
use rekindle_wire::{SnapshotId, VersionNumber};
use tempfile::TempDir;

use crate::capture::CaptureMeta;
use crate::store::{Store, StoreConfig, Timeouts};

/// An S3 server in this process and a store on it. The server ends with the test's runtime.
pub(crate) struct TestStore {
    pub(crate) store: Store,
    pub(crate) address: SocketAddr,
    pub(crate) dir: TempDir,
    stop: tokio::sync::watch::Sender<bool>,
}

pub(crate) const BUCKET: &str = "rekindle-test";

pub(crate) fn config(address: SocketAddr) -> StoreConfig {
    StoreConfig {
        endpoint: Some(format!("http://{address}")),
        bucket: BUCKET.to_owned(),
        prefix: "team".to_owned(),
        region: "us-east-1".to_owned(),
        credentials: Some(("test-key".to_owned(), "test-secret".to_owned())),
        force_path_style: true,
        timeouts: Timeouts {
            attempt: Duration::from_secs(5),
            operation: Duration::from_secs(12),
            ..Timeouts::default()
        },
    }
}

impl TestStore {
    pub(crate) async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, mut stopped) = tokio::sync::watch::channel(false);
        let server = rekindle_s3_local::Config {
            root: dir.path().join("s3"),
            access_key: "test-key".to_owned(),
            secret_key: "test-secret".to_owned(),
            buckets: Vec::new(),
        };
        tokio::spawn(async move {
            let shutdown = async move {
                drop(stopped.wait_for(|stop| *stop).await);
            };
            rekindle_s3_local::serve(server, listener, shutdown).await.unwrap();
        });
        let store = Store::connect(config(address)).await.unwrap();
        store.ensure_bucket().await.unwrap();
        Self {
            store,
            address,
            dir,
            stop,
        }
    }

    /// A directory for the test's own files.
    pub(crate) fn scratch(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    pub(crate) fn stop(&self) {
        self.stop.send(true).unwrap();
    }

    /// Flip a bit of an object, as a store with rotten disks would.
    pub(crate) async fn flip(&self, key: &str, at: usize) {
        let mut bytes = self.store.get(key).await.unwrap().to_vec();
        let at = at % bytes.len();
        bytes[at] ^= 0x10;
        self.store.put(key, bytes.into()).await.unwrap();
    }

    pub(crate) async fn keys(&self, prefix: &str) -> Vec<String> {
        let found = self.store.list(prefix).await.unwrap();
        found.into_iter().map(|object| object.key).collect()
    }
}

pub(crate) fn meta() -> CaptureMeta {
    let layer = LayerRef {
        digest: "0".repeat(64),
        tar_bytes: 1,
    };
    CaptureMeta {
        id: SnapshotId::generate(),
        function: "hello".parse().unwrap(),
        version: VersionNumber(1),
        criu: "4.2.1".to_owned(),
        rootfs: layer.clone(),
        layer,
        frozen_ms: 12.5,
        extra: Vec::new(),
    }
}

const CRIU: &str = "/usr/local/lib/rekindle/criu/criu";

/// 8 MiB of which each page is another, 2 MiB of noise, 4 MiB touched but zero; a child that shares all of it and has
/// changed a little, and a shared mapping, whose pages are never lazy.
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

/// A program of two processes, ended when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The child of the program has its parent's process group, which is its own: setsid made it.
        let group = nix::unistd::Pid::from_raw(i32::try_from(self.0.id()).unwrap());
        let _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
        drop(self.0.wait());
    }
}

/// Dump the test program with CRIU into `dir`. `None`, saying why, where that cannot be.
pub(crate) fn criu_dump(dir: &Path) -> Option<()> {
    if !Path::new(CRIU).exists() || !nix::unistd::geteuid().is_root() {
        println!("skipped: needs root and CRIU at {CRIU} (scripts/install-criu.sh)");
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
    let program = Running(program);
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

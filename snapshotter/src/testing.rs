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

/// Length-framed messages after CRIU's magic numbers.
fn framed(kind: u32, messages: &[Vec<u8>]) -> Vec<u8> {
    let mut out = 0x5456_4319_u32.to_le_bytes().to_vec();
    out.extend_from_slice(&kind.to_le_bytes());
    for message in messages {
        out.extend_from_slice(&u32::try_from(message.len()).unwrap().to_le_bytes());
        out.extend_from_slice(message);
    }
    out
}

/// A protobuf field of number `tag` with a varint.
fn varint(tag: u8, mut value: u64) -> Vec<u8> {
    let mut out = vec![tag << 3];
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

/// Bytes that LZ4 cannot shrink.
pub(crate) fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

/// A dump as CRIU lays it out, of one process (pid 7): `lazy` from address 0x10000 on, then one eager page. For tests of
/// what happens around a dump; whether it is like CRIU's own is for the tests that run CRIU.
pub(crate) fn small_dump(dir: &Path, lazy: &[u8]) {
    std::fs::create_dir_all(dir).unwrap();
    let pages = lazy.len() as u64 / 4096;
    let end = 0x10000 + pages * 4096;
    let entry = |at, pages, flags| [varint(1, at), varint(2, 0), varint(4, flags), varint(5, pages)].concat();
    let vma = [varint(1, 0x10000), varint(2, end + 4096)].concat();
    let mut mm = vec![14 << 3 | 2, u8::try_from(vma.len()).unwrap()];
    mm.extend_from_slice(&vma);
    let pagemap = [varint(1, 1), entry(0x10000, pages, 6), entry(end, 1, 4)];
    let write = |name: &str, bytes: Vec<u8>| std::fs::write(dir.join(name), bytes).unwrap();
    write("inventory.img", noise(80, 1));
    write("pstree.img", framed(0x5027_3030, &[varint(1, 7)]));
    write("mm-7.img", framed(0x5749_2820, &[mm]));
    write("pagemap-7.img", framed(0x5608_4025, &pagemap));
    write("pages-1.img", [lazy, &[0x5a; 4096]].concat());
    write("dump.log", b"not part of the snapshot".to_vec());
}

/// A network path to a server that can be cut, and that counts.
pub(crate) struct Wire {
    pub(crate) address: SocketAddr,
    down: std::sync::Arc<std::sync::atomic::AtomicU64>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Wire {
    /// A path to `server` that is cut for good when `up_limit` bytes have gone up, all connections together.
    pub(crate) async fn to(server: SocketAddr, up_limit: u64) -> Self {
        use std::sync::Arc;
        use std::sync::atomic::AtomicU64;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (up, down) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let counted = down.clone();
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(carry(client, server, up.clone(), counted.clone(), up_limit));
            }
        });
        Self { address, down, task }
    }

    /// Bytes that came down.
    pub(crate) fn received(&self) -> u64 {
        self.down.load(std::sync::atomic::Ordering::SeqCst)
    }
}

async fn carry(
    mut client: tokio::net::TcpStream,
    server: SocketAddr,
    up: std::sync::Arc<std::sync::atomic::AtomicU64>,
    down: std::sync::Arc<std::sync::atomic::AtomicU64>,
    up_limit: u64,
) {
    use std::sync::atomic::Ordering::SeqCst;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    if up.load(SeqCst) >= up_limit {
        return;
    }
    let mut server = tokio::net::TcpStream::connect(server).await.unwrap();
    let (mut from_client, mut from_server) = (vec![0; 16 << 10], vec![0; 64 << 10]);
    loop {
        let passed = tokio::select! {
            n = client.read(&mut from_client) => match n {
                Ok(n) if n > 0 && up.fetch_add(n as u64, SeqCst) + n as u64 <= up_limit => server.write_all(&from_client[..n]).await,
                _ => return,
            },
            n = server.read(&mut from_server) => match n {
                Ok(n) if n > 0 && up.load(SeqCst) <= up_limit => {
                    down.fetch_add(n as u64, SeqCst);
                    client.write_all(&from_server[..n]).await
                }
                _ => return,
            },
        };
        if passed.is_err() {
            return;
        }
    }
}

/// A configuration whose calls give up at once, for stores that are gone.
pub(crate) fn impatient(address: SocketAddr) -> StoreConfig {
    let mut config = config(address);
    config.timeouts = Timeouts {
        connect: Duration::from_millis(500),
        attempt: Duration::from_millis(1000),
        operation: Duration::from_millis(1500),
        attempts: 1,
        ..Timeouts::default()
    };
    config
}

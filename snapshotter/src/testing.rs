//! Support for this crate's tests: a store served in this process, and dumps made by the real CRIU.

use std::fs::File;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use rekindle_criu::images::testing::{Run, framed, mm_image, pagemap_image, varint};
use rekindle_s3_servers::{Kind, Server};
use rekindle_wire::internal::LayerRef;
use rekindle_wire::{SnapshotId, VersionNumber};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::capture::{CaptureMeta, CaptureOptions};
use crate::manifest::Origin;
use crate::store::{Store, StoreConfig, Timeouts};

/// An S3 server in this process and a store on it. The server stops with the test's runtime.
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
        encryption: crate::store::Encryption::AsBucket,
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

    /// Stops the server. Once this returns, no request is answered any more.
    pub(crate) async fn stop(&self) {
        self.stop.send(true).unwrap();
        while TcpStream::connect(self.address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Flips a bit of an object, as a store with failing disks would.
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

/// Prints why a test is skipped. Fails instead where every test must run.
fn skipped(reason: &str) {
    assert!(std::env::var("REKINDLE_REQUIRE_ALL").as_deref() != Ok("1"), "{reason}");
    println!("skipped: {reason}");
}

/// A third-party server, with the user that [`config`] names. `None` if the test is skipped, which is printed.
pub(crate) fn other_server(kind: Kind) -> Option<Server> {
    Server::start(kind, Ipv4Addr::LOCALHOST, ("test-key", "test-secret"))
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
struct Running(Child);

impl Drop for Running {
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

/// Bytes that LZ4 cannot compress.
pub(crate) fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
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

/// A network path to a server that counts traffic and can be cut or stalled.
pub(crate) struct Wire {
    pub(crate) address: SocketAddr,
    traffic: Arc<Traffic>,
    task: tokio::task::JoinHandle<()>,
}

/// Bytes and connections so far, and their limits, over all connections.
struct Traffic {
    up: AtomicU64,
    down: AtomicU64,
    connections: AtomicU64,
    up_limit: u64,
    down_limit: u64,
    /// Maximum delay of upstream traffic. Each packet is delayed differently.
    delay: Duration,
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Wire {
    /// A path to `server` that is cut for good once `up_limit` bytes have been sent.
    pub(crate) async fn to(server: SocketAddr, up_limit: u64) -> Self {
        Self::with_limits(server, up_limit, u64::MAX, Duration::ZERO).await
    }

    /// Such a path, which delays upstream traffic by up to `delay`.
    pub(crate) async fn slow(server: SocketAddr, up_limit: u64, delay: Duration) -> Self {
        Self::with_limits(server, up_limit, u64::MAX, delay).await
    }

    /// A path that delivers nothing after `down_limit` bytes while connections stay open.
    pub(crate) async fn stalling(server: SocketAddr, down_limit: u64) -> Self {
        Self::with_limits(server, u64::MAX, down_limit, Duration::ZERO).await
    }

    async fn with_limits(server: SocketAddr, up_limit: u64, down_limit: u64, delay: Duration) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let traffic = Arc::new(Traffic {
            up: AtomicU64::new(0),
            down: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            up_limit,
            down_limit,
            delay,
        });
        let counted = traffic.clone();
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                counted.connections.fetch_add(1, SeqCst);
                connections.spawn(carry(client, server, counted.clone()));
            }
        });
        Self { address, traffic, task }
    }

    /// Bytes sent.
    pub(crate) fn sent(&self) -> u64 {
        self.traffic.up.load(SeqCst)
    }

    /// Bytes received.
    pub(crate) fn received(&self) -> u64 {
        self.traffic.down.load(SeqCst)
    }

    /// Number of connections so far.
    pub(crate) fn connections(&self) -> u64 {
        self.traffic.connections.load(SeqCst)
    }
}

async fn carry(mut client: TcpStream, server: SocketAddr, traffic: Arc<Traffic>) {
    let Traffic {
        up,
        down,
        up_limit,
        down_limit,
        delay,
        ..
    } = &*traffic;
    if up.load(SeqCst) >= *up_limit {
        return;
    }
    let mut server = TcpStream::connect(server).await.unwrap();
    let (mut from_client, mut from_server) = (vec![0; 16 << 10], vec![0; 64 << 10]);
    loop {
        let passed = tokio::select! {
            n = client.read(&mut from_client) => match n {
                Ok(n) if n > 0 && up.fetch_add(n as u64, SeqCst) + n as u64 <= *up_limit => {
                    if !delay.is_zero() {
                        // The delay depends on the bytes, and requests differ because they are signed.
                        let part = blake3::hash(&from_client[..n]).as_bytes()[0];
                        tokio::time::sleep(delay.mul_f64(f64::from(part) / 255.0)).await;
                    }
                    server.write_all(&from_client[..n]).await
                }
                _ => return,
            },
            n = server.read(&mut from_server) => match n {
                Ok(n) if n > 0 && up.load(SeqCst) <= *up_limit => {
                    if down.fetch_add(n as u64, SeqCst) > *down_limit {
                        std::future::pending::<()>().await;
                    }
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

/// A configuration whose calls give up at once, for unreachable stores.
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

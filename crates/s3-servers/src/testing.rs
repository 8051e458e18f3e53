//! A store for tests, served in this process, and a network path to it that can be cut.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use rekindle_store::Store;
use rekindle_store_s3::{Encryption, StoreConfig, Timeouts, connect};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::{Kind, Server};

/// An S3 server in this process and a store on it. The server stops with the test's runtime.
pub struct TestStore {
    /// The store.
    pub store: Store,
    /// The server's address.
    pub address: SocketAddr,
    /// Where it keeps its files, and where tests may keep theirs.
    pub dir: TempDir,
    stop: tokio::sync::watch::Sender<bool>,
}

const BUCKET: &str = "rekindle-test";

/// A store on a server at this address that has the user of the tests.
pub fn config(address: SocketAddr) -> StoreConfig {
    StoreConfig {
        endpoint: Some(format!("http://{address}")),
        bucket: BUCKET.to_owned(),
        prefix: "team".to_owned(),
        region: "us-east-1".to_owned(),
        credentials: Some(("test-key".to_owned(), "test-secret".to_owned())),
        force_path_style: true,
        encryption: Encryption::AsBucket,
        timeouts: Timeouts {
            attempt: Duration::from_secs(5),
            operation: Duration::from_secs(12),
            ..Timeouts::default()
        },
    }
}

impl TestStore {
    /// Starts a server in this process.
    pub async fn start() -> Self {
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
        let store = connect(config(address)).await;
        store.ensure_place().await.unwrap();
        Self {
            store,
            address,
            dir,
            stop,
        }
    }

    /// A directory for the test's own files.
    pub fn scratch(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    /// Stops the server. Once this returns, no request is answered any more.
    pub async fn stop(&self) {
        self.stop.send(true).unwrap();
        while TcpStream::connect(self.address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Flips a bit of an object, as a store with failing disks would.
    pub async fn flip(&self, key: &str, at: usize) {
        let mut bytes = self.store.get(key).await.unwrap().to_vec();
        let at = at % bytes.len();
        bytes[at] ^= 0x10;
        self.store.put(key, bytes.into()).await.unwrap();
    }

    /// All keys that begin with `prefix`.
    pub async fn keys(&self, prefix: &str) -> Vec<String> {
        let found = self.store.list(prefix).await.unwrap();
        found.into_iter().map(|object| object.key).collect()
    }
}

/// A third-party server, with the user that [`config`] names. `None` if the test is skipped, which is printed.
pub fn other_server(kind: Kind) -> Option<Server> {
    Server::start(kind, Ipv4Addr::LOCALHOST, ("test-key", "test-secret"))
}

/// Bytes that LZ4 cannot compress.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

/// A network path to a server that counts traffic and can be cut or stalled.
pub struct Wire {
    /// Where clients connect.
    pub address: SocketAddr,
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
    pub async fn to(server: SocketAddr, up_limit: u64) -> Self {
        Self::with_limits(server, up_limit, u64::MAX, Duration::ZERO).await
    }

    /// Such a path, which delays upstream traffic by up to `delay`.
    pub async fn slow(server: SocketAddr, up_limit: u64, delay: Duration) -> Self {
        Self::with_limits(server, up_limit, u64::MAX, delay).await
    }

    /// A path that delivers nothing after `down_limit` bytes while connections stay open.
    pub async fn stalling(server: SocketAddr, down_limit: u64) -> Self {
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
    pub fn sent(&self) -> u64 {
        self.traffic.up.load(SeqCst)
    }

    /// Bytes received.
    pub fn received(&self) -> u64 {
        self.traffic.down.load(SeqCst)
    }

    /// Number of connections so far.
    pub fn connections(&self) -> u64 {
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
pub fn impatient(address: SocketAddr) -> StoreConfig {
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

//! An object store of the tests' own: the S3 server that `fn up` embeds, behind a line that can be made to hang or
//! break.
//!
//! The line looks for the beginning of a key in what the platform sends. A request's head arrives in one piece, since
//! it is written in one piece and is far smaller than the buffer.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rekindle_snapshotter::Store;
use rekindle_store_s3::{Encryption, StoreConfig, Timeouts};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

pub use crate::s3_server::environment;
use crate::s3_server::{self, BUCKET, KEY, SECRET};
use crate::{Options, block_on, imported};

/// What the first line of a request for a chunk contains.
const CHUNK: &[u8] = b"/rekindle/chunks/";

/// What the line does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    /// Passes everything.
    Good,
    /// Accepts requests for chunks and never answers them; passes the rest.
    ChunksHang,
    /// Holds requests for chunks until the line changes; passes the rest.
    ChunksWait,
    /// Dies at the first request for a chunk, and stays dead.
    DiesAtChunks,
    /// Breaks the connection at every second request; passes the rest.
    Fails,
    /// Refuses everything.
    Dead,
}

/// A request that went over the line.
#[derive(Debug, Clone)]
pub struct Asked {
    /// Method and path.
    pub what: String,
    /// When it came.
    pub at: Instant,
}

/// State shared by the line's connections.
#[derive(Debug)]
struct Shared {
    state: watch::Sender<Line>,
    kept: AtomicUsize,
    requests: AtomicUsize,
    /// Milliseconds for which each request is held before it is passed on.
    delay_ms: AtomicU64,
    asked: Mutex<Vec<Asked>>,
}

impl Shared {
    /// Records a request that has come.
    fn note(&self, what: String) {
        let at = Instant::now();
        self.asked.lock().unwrap().push(Asked { what, at });
    }
}

/// The store.
pub struct ObjectStore {
    server: SocketAddr,
    line: SocketAddr,
    shared: Arc<Shared>,
    _root: TempDir,
}

impl ObjectStore {
    /// Starts it; the line is good.
    pub fn start() -> Self {
        Self::start_at(Ipv4Addr::LOCALHOST)
    }

    /// Starts it at another address of this machine.
    pub fn start_at(address: Ipv4Addr) -> Self {
        let root = tempfile::tempdir().unwrap();
        let served = root.path().join("s3");
        imported::fill_server(&served).unwrap_or_else(|e| panic!("{e:#}"));
        let server = s3_server::start(&served, address, std::future::pending());
        let shared = Arc::new(Shared {
            state: watch::Sender::new(Line::Good),
            kept: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
            delay_ms: AtomicU64::new(0),
            asked: Mutex::default(),
        });
        let lined = Arc::clone(&shared);
        let line = block_on(async move {
            let listener = TcpListener::bind((address, 0)).await.unwrap();
            let line = listener.local_addr().unwrap();
            tokio::spawn(accept(listener, server, lined));
            line
        });
        Self {
            server,
            line,
            shared,
            _root: root,
        }
    }

    /// Its address, over the line.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.line)
    }

    /// The variables with its credentials.
    pub fn environment(&self) -> Vec<(String, String)> {
        environment(KEY, SECRET)
    }

    /// Options for a platform that uses it, over the line.
    pub fn options(&self) -> Options {
        let mut options = Options::default();
        self.be_used_by(&mut options);
        options
    }

    /// Makes a platform with these options use it, over the line.
    pub fn be_used_by(&self, options: &mut Options) {
        options.args.extend(["--s3-endpoint".to_owned(), self.endpoint()]);
        options.env.extend(environment(KEY, SECRET));
    }

    /// Changes what the line does, also for open connections.
    pub fn set(&self, line: Line) {
        self.shared.state.send_replace(line);
    }

    /// What the line does now: a line that was to die may be dead.
    pub fn line(&self) -> Line {
        *self.shared.state.borrow()
    }

    /// Number of requests for chunks held so far.
    pub fn kept(&self) -> usize {
        self.shared.kept.load(Ordering::Relaxed)
    }

    /// Holds each request for `delay` from now on.
    pub fn set_delay(&self, delay: Duration) {
        let milliseconds = u64::try_from(delay.as_millis()).unwrap();
        self.shared.delay_ms.store(milliseconds, Ordering::Relaxed);
    }

    /// The requests since the last call.
    pub fn take_asked(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.shared.asked.lock().unwrap())
    }

    /// A client that does not use the line.
    pub fn client(&self) -> Store {
        let config = StoreConfig {
            endpoint: Some(format!("http://{}", self.server)),
            bucket: BUCKET.to_owned(),
            prefix: String::new(),
            region: "us-east-1".to_owned(),
            credentials: Some((KEY.to_owned(), SECRET.to_owned())),
            force_path_style: true,
            encryption: Encryption::AsBucket,
            timeouts: Timeouts::default(),
        };
        block_on(rekindle_store_s3::connect(config))
    }
}

async fn accept(listener: TcpListener, server: SocketAddr, shared: Arc<Shared>) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let mut watched = shared.state.subscribe();
            let died = async move { drop(watched.wait_for(|line| *line == Line::Dead).await) };
            tokio::select! {
                () = died => {}
                // Either end notices a broken connection itself.
                _ = carry(client, server, &shared) => {}
            }
        });
    }
}

/// The method and path of the request whose head begins here, if one does.
fn head_of(bytes: &[u8]) -> Option<String> {
    let begins = [&b"GET "[..], b"PUT ", b"HEAD ", b"POST ", b"DELETE "];
    let line = bytes.split(|b| *b == b'\r').next()?;
    let is_head = begins.iter().any(|b| line.starts_with(b)) && line.ends_with(b" HTTP/1.1");
    is_head.then(|| String::from_utf8_lossy(&line[..line.len() - 9]).into_owned())
}

async fn carry(client: TcpStream, server: SocketAddr, shared: &Shared) -> std::io::Result<()> {
    let server = TcpStream::connect(server).await?;
    server.set_nodelay(true)?;
    client.set_nodelay(true)?;
    let (mut from_client, mut to_client) = client.into_split();
    let (from_server, mut to_server) = server.into_split();
    let asking = async {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let read = from_client.read(&mut buffer).await?;
            if read == 0 {
                return to_server.shutdown().await;
            }
            if let Some(what) = head_of(&buffer[..read]) {
                shared.note(what);
                tokio::time::sleep(Duration::from_millis(shared.delay_ms.load(Ordering::Relaxed))).await;
                let number = shared.requests.fetch_add(1, Ordering::Relaxed);
                if *shared.state.borrow() == Line::Fails && number.is_multiple_of(2) {
                    return Err(std::io::ErrorKind::ConnectionReset.into());
                }
            }
            if memchr::memmem::find(&buffer[..read], CHUNK).is_some() {
                let line = *shared.state.borrow();
                match line {
                    Line::ChunksHang => std::future::pending().await,
                    Line::ChunksWait => {
                        shared.kept.fetch_add(1, Ordering::Relaxed);
                        // The sender outlives every connection.
                        drop(
                            shared
                                .state
                                .subscribe()
                                .wait_for(|line| *line != Line::ChunksWait)
                                .await,
                        );
                    }
                    Line::DiesAtChunks => {
                        shared.state.send_replace(Line::Dead);
                    }
                    Line::Good | Line::Fails | Line::Dead => {}
                }
            }
            to_server.write_all(&buffer[..read]).await?;
        }
    };
    let mut from_server = BufReader::with_capacity(256 << 10, from_server);
    let answering = tokio::io::copy_buf(&mut from_server, &mut to_client);
    tokio::select! {
        asked = asking => asked,
        answered = answering => answered.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    #[test]
    fn every_request_on_a_connection_waits_once() {
        let store = ObjectStore::start();
        let delay = Duration::from_millis(60);
        store.set_delay(delay);
        let mut connection = std::net::TcpStream::connect(store.line).unwrap();
        for _ in 0..2 {
            let began = Instant::now();
            // Unsigned, so refused; that is a response all the same.
            connection
                .write_all(b"GET /rekindle/x HTTP/1.1\r\nhost: x\r\n\r\n")
                .unwrap();
            let mut buffer = [0; 4096];
            let read = connection.read(&mut buffer).unwrap();
            let answer = String::from_utf8_lossy(&buffer[..read]);
            assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
            assert!(began.elapsed() >= delay);
        }
    }
}

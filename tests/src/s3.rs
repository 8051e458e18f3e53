//! An object store of the tests' own: the S3 server that `fn up` embeds, behind a line that can be made to hang or break.
//!
//! The line looks for a key's beginning in what the platform sends; a request's head arrives in one piece, since it is
//! written in one piece and is far smaller than the buffer.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rekindle_s3_local::{Config, serve};
use rekindle_snapshotter::{Store, StoreConfig, Timeouts};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::{Options, RUNTIME};

const KEY: &str = "tests";
const SECRET: &str = "secret-of-the-tests";
const BUCKET: &str = "rekindle";
/// What a request for a chunk has in its first line.
const CHUNK: &[u8] = b"/rekindle/chunks/";

/// What the line does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    /// Passes everything.
    Good,
    /// Takes requests for chunks and never answers them; passes the rest.
    ChunksHang,
    /// Keeps requests for chunks until the line changes; passes the rest.
    ChunksWait,
    /// Dies at the first request for a chunk, and stays dead.
    DiesAtChunks,
    /// Refuses everything.
    Dead,
}

/// The store.
pub struct ObjectStore {
    server: SocketAddr,
    line: SocketAddr,
    state: Arc<watch::Sender<Line>>,
    kept: Arc<AtomicUsize>,
    _root: TempDir,
}

impl ObjectStore {
    /// Starts it; the line is good.
    pub fn start() -> Self {
        let root = tempfile::tempdir().unwrap();
        let config = Config {
            root: root.path().join("s3"),
            access_key: KEY.to_owned(),
            secret_key: SECRET.to_owned(),
            buckets: vec![BUCKET.to_owned()],
        };
        let state = Arc::new(watch::Sender::new(Line::Good));
        let kept = Arc::new(AtomicUsize::new(0));
        let (lined, counted) = (Arc::clone(&state), Arc::clone(&kept));
        let (server, line) = RUNTIME.block_on(async move {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let server = listener.local_addr().unwrap();
            tokio::spawn(async move { serve(config, listener, std::future::pending()).await.unwrap() });
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let line = listener.local_addr().unwrap();
            tokio::spawn(accept(listener, server, lined, counted));
            (server, line)
        });
        Self {
            server,
            line,
            state,
            kept,
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
        options.args.extend(["--s3-endpoint".to_owned(), self.endpoint()]);
        options.env.extend(environment(KEY, SECRET));
        options
    }

    /// Changes what the line does, for connections that are open as well.
    pub fn set(&self, line: Line) {
        self.state.send_replace(line);
    }

    /// What the line does now: one that was to die may have.
    pub fn line(&self) -> Line {
        *self.state.borrow()
    }

    /// How many requests for chunks it was made to keep so far.
    pub fn kept(&self) -> usize {
        self.kept.load(Ordering::Relaxed)
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
            timeouts: Timeouts::default(),
        };
        RUNTIME.block_on(Store::connect(config)).unwrap()
    }
}

/// The usual AWS variables.
pub(crate) fn environment(key: &str, secret: &str) -> Vec<(String, String)> {
    let variables = [
        ("AWS_ACCESS_KEY_ID", key),
        ("AWS_SECRET_ACCESS_KEY", secret),
        ("AWS_REGION", "us-east-1"),
    ];
    variables.map(|(k, v)| (k.to_owned(), v.to_owned())).to_vec()
}

async fn accept(listener: TcpListener, server: SocketAddr, state: Arc<watch::Sender<Line>>, kept: Arc<AtomicUsize>) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let (state, kept) = (Arc::clone(&state), Arc::clone(&kept));
        tokio::spawn(async move {
            let mut watched = state.subscribe();
            let died = async move { drop(watched.wait_for(|line| *line == Line::Dead).await) };
            tokio::select! {
                () = died => {}
                // A broken connection is one of the two's, who notice themselves.
                _ = carry(client, server, &state, &kept) => {}
            }
        });
    }
}

async fn carry(
    client: TcpStream,
    server: SocketAddr,
    state: &watch::Sender<Line>,
    kept: &AtomicUsize,
) -> std::io::Result<()> {
    let server = TcpStream::connect(server).await?;
    server.set_nodelay(true)?;
    client.set_nodelay(true)?;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let asking = async {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let read = from_client.read(&mut buffer).await?;
            if read == 0 {
                return to_server.shutdown().await;
            }
            if buffer[..read].windows(CHUNK.len()).any(|w| w == CHUNK) {
                let line = *state.borrow();
                match line {
                    Line::ChunksHang => std::future::pending().await,
                    Line::ChunksWait => {
                        kept.fetch_add(1, Ordering::Relaxed);
                        // The sender outlives every connection.
                        drop(state.subscribe().wait_for(|line| *line != Line::ChunksWait).await);
                    }
                    Line::DiesAtChunks => {
                        state.send_replace(Line::Dead);
                    }
                    Line::Good | Line::Dead => {}
                }
            }
            to_server.write_all(&buffer[..read]).await?;
        }
    };
    let answering = tokio::io::copy(&mut from_server, &mut to_client);
    tokio::select! {
        asked = asking => asked,
        answered = answering => answered.map(drop),
    }
}

//! An object store that answers late: the S3 server that `fn up` embeds, behind a line that holds each request for a
//! while. It runs in a thread of its own, since this program's main thread times responses.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const KEY: &str = "bench";
const SECRET: &str = "secret-of-the-bench";
const BUCKET: &str = "rekindle";

/// The store; it ends with this program.
pub(crate) struct SlowStore {
    line: SocketAddr,
    delay_ms: Arc<AtomicU64>,
}

impl SlowStore {
    /// Starts a store with its objects in `dir`, without a delay.
    pub(crate) fn start(dir: &Path) -> Result<Self> {
        let listen = || std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port");
        let (server, line) = (listen()?, listen()?);
        for listener in [&server, &line] {
            listener.set_nonblocking(true).context("a listener that blocks")?;
        }
        let address = |l: &std::net::TcpListener| l.local_addr().context("the port is not known");
        let (server_address, line_address) = (address(&server)?, address(&line)?);
        let config = rekindle_s3_local::Config {
            root: dir.join("objects"),
            access_key: KEY.to_owned(),
            secret_key: SECRET.to_owned(),
            buckets: vec![BUCKET.to_owned()],
        };
        let delay_ms = Arc::new(AtomicU64::new(0));
        let delay = Arc::clone(&delay_ms);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("the async runtime could not be started")?;
        std::thread::spawn(move || {
            runtime.block_on(async move {
                let (Ok(server), Ok(line)) = (TcpListener::from_std(server), TcpListener::from_std(line)) else {
                    return;
                };
                let serving = rekindle_s3_local::serve(config, server, std::future::pending());
                let (_ended, ()) = tokio::join!(serving, accept(line, server_address, delay));
            });
        });
        Ok(Self {
            line: line_address,
            delay_ms,
        })
    }

    /// The environment that a platform needs to use it.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        let endpoint = format!("http://{}", self.line);
        [
            ("FN_S3_ENDPOINT", endpoint.as_str()),
            ("FN_S3_BUCKET", BUCKET),
            ("AWS_ACCESS_KEY_ID", KEY),
            ("AWS_SECRET_ACCESS_KEY", SECRET),
            ("AWS_REGION", "us-east-1"),
        ]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .to_vec()
    }

    /// Holds each request for `ms` milliseconds from now on.
    pub(crate) fn delay(&self, ms: u64) {
        self.delay_ms.store(ms, Ordering::Relaxed);
    }
}

async fn accept(line: TcpListener, server: SocketAddr, delay: Arc<AtomicU64>) {
    loop {
        match line.accept().await {
            Ok((client, _)) => {
                let delay = Arc::clone(&delay);
                tokio::spawn(async move {
                    // Either end notices a broken connection itself.
                    let _ended = carry(client, server, &delay).await;
                });
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

/// The first bytes after a response are a new request, and are delayed; what follows at once is the rest of it.
async fn carry(client: TcpStream, server: SocketAddr, delay: &AtomicU64) -> std::io::Result<()> {
    let server = TcpStream::connect(server).await?;
    server.set_nodelay(true)?;
    client.set_nodelay(true)?;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let answered = AtomicBool::new(true);
    let asking = async {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let read = from_client.read(&mut buffer).await?;
            if read == 0 {
                return to_server.shutdown().await;
            }
            if answered.swap(false, Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_millis(delay.load(Ordering::Relaxed))).await;
            }
            to_server.write_all(&buffer[..read]).await?;
        }
    };
    let answering = async {
        let mut buffer = vec![0; 256 << 10];
        loop {
            let read = from_server.read(&mut buffer).await?;
            if read == 0 {
                return to_client.shutdown().await;
            }
            answered.store(true, Ordering::Relaxed);
            to_client.write_all(&buffer[..read]).await?;
        }
    };
    tokio::select! {
        asked = asking => asked,
        answer = answering => answer,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::time::Instant;

    use super::*;

    #[test]
    fn every_request_on_a_connection_waits_once() {
        let dir = tempfile::tempdir().unwrap();
        let store = SlowStore::start(dir.path()).unwrap();
        let delay = Duration::from_millis(60);
        store.delay(60);
        let mut connection = std::net::TcpStream::connect(store.line).unwrap();
        for _ in 0..2 {
            let began = Instant::now();
            // Unsigned, so refused; that is a response all the same.
            connection
                .write_all(b"GET /rekindle/x HTTP/1.1\r\nhost: x\r\n\r\n")
                .unwrap();
            let mut buffer = [0; 4096];
            let read = connection.read(&mut buffer).unwrap();
            assert!(
                buffer[..read].starts_with(b"HTTP/1.1 4"),
                "{:?}",
                String::from_utf8_lossy(&buffer[..read])
            );
            assert!(began.elapsed() >= delay);
        }
    }
}

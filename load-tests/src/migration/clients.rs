//! Clients that send requests continuously, and notice if a response is late or missing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use http::Method;

use crate::client::Connection;

/// Minimum interval between two requests of one client.
const EVERY: Duration = Duration::from_millis(1);

/// Clients that run until they are told to stop.
pub(super) struct Clients {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<Vec<Asked>>>>,
}

/// One request.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) at: Instant,
    pub(super) took: Duration,
    /// Why the response was wrong or missing.
    pub(super) failed: Option<String>,
}

impl Clients {
    /// Starts `count` clients, each on a thread and a connection of its own.
    pub(super) fn start(count: usize, address: SocketAddr, path: &str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let one = |_| {
            let (stop, path) = (Arc::clone(&stop), path.to_owned());
            std::thread::spawn(move || ask(address, &path, &stop))
        };
        let threads = (0..count).map(one).collect();
        Self { stop, threads }
    }

    /// Stops them, and returns all their requests.
    pub(super) fn stop(self) -> Result<Vec<Asked>> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for thread in self.threads {
            let asked = thread.join().map_err(|_| anyhow::anyhow!("a client panicked"))?;
            all.extend(asked?);
        }
        Ok(all)
    }
}

fn ask(address: SocketAddr, path: &str, stop: &AtomicBool) -> Result<Vec<Asked>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime
        .context("the async runtime could not be started")?
        .block_on(async {
            let mut connection = Connection::open_at(address).await?;
            let mut all = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let at = Instant::now();
                let answer = connection.call(Method::GET, path, &[]).await;
                let took = at.elapsed();
                let failed = match &answer {
                    Ok(answer) if answer.status.is_success() => None,
                    Ok(answer) => Some(format!("{}: {}", answer.status, answer.text())),
                    Err(error) => Some(format!("{error:#}")),
                };
                all.push(Asked { at, took, failed });
                if answer.is_err() {
                    connection = Connection::open_at(address).await?;
                }
                if took < EVERY {
                    std::thread::sleep(EVERY - took);
                }
            }
            Ok(all)
        })
}

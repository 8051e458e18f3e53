//! The scheduler's configuration, start and end.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::ListenerExt as _;
use tokio::net::TcpListener;

use crate::catalog::Catalog;
use crate::collection::{self, Collecting};
use crate::objects::ObjectStore;
use crate::state::Shared;
use crate::store::Store;
use crate::{api, async_calls, reaper};

/// How long requests and tasks may take to finish when the scheduler is told to end. A version being prepared is not waited for: it
/// is marked failed at the next start.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(5);

/// How to run a scheduler.
#[derive(Clone)]
pub struct Config {
    /// The SQLite database's file; made when it is not there. Its folder must exist.
    pub database: PathBuf,
    /// A folder for uploads while they are received; it must exist.
    pub spool: PathBuf,
    /// The cluster's secret, which every caller must send.
    pub cluster_token: String,
    /// Where uploaded folders and snapshots lie.
    pub objects: Arc<dyn ObjectStore>,
    /// When to remove there what nobody needs.
    pub collecting: Collecting,
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The token stays out of logs.
        f.debug_struct("Config")
            .field("database", &self.database)
            .field("spool", &self.spool)
            .finish_non_exhaustive()
    }
}

/// Why a scheduler could not run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The cluster token cannot be sent in a header.
    #[error("the cluster token is empty or not plain ASCII: make another")]
    Token,
    /// The database cannot be used.
    #[error("the scheduler's database cannot be used")]
    Store(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The listener failed.
    #[error("the scheduler's listener failed")]
    Listen(#[source] std::io::Error),
}

/// Runs a scheduler on `listener` until `shutdown` resolves. Then it accepts nothing new and finishes within five seconds.
///
/// # Errors
/// When the configuration or the database cannot be used.
pub async fn serve(
    config: Config,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServeError> {
    if config.cluster_token.is_empty() || http::HeaderValue::from_str(&config.cluster_token).is_err() {
        return Err(ServeError::Token);
    }
    let bad = |e| ServeError::Store(Box::new(e));
    let store = Store::open(&config.database).await.map_err(bad)?;
    let unfinished = store.fail_unfinished().await.map_err(bad)?;
    if unfinished > 0 {
        tracing::warn!(
            unfinished,
            "versions that were being prepared when the scheduler ended are marked failed"
        );
    }
    let mut catalog = Catalog::default();
    for spec in store.live_specs().await.map_err(bad)? {
        catalog.add(spec);
    }
    let drained = store.drained().await.map_err(bad)?;
    let scheduler = Shared::new(config, store, catalog);
    scheduler.memory().fleet.set_drained(drained);
    let reaping = tokio::spawn(reaper::run(scheduler.clone()));
    let collecting = tokio::spawn(collection::run(scheduler.clone()));
    let sweeping = tokio::spawn(async_calls::run(scheduler.clone()));
    let (ending, mut ended) = tokio::sync::watch::channel(false);
    let router = api::router(scheduler.clone());
    let listener = listener.tap_io(|io| drop(io.set_nodelay(true)));
    let serving = axum::serve(listener, router).with_graceful_shutdown(async move {
        shutdown.await;
        let _ = ending.send(true);
    });
    let result = tokio::select! {
        result = serving => result.map_err(ServeError::Listen),
        () = async {
            drop(ended.wait_for(|e| *e).await);
            // Waits for leases and logs that are followed would otherwise hold the end up.
            scheduler.recalls.notify_waiters();
            tokio::time::sleep(SHUTDOWN_LIMIT).await;
        } => Ok(()),
    };
    reaping.abort();
    collecting.abort();
    sweeping.abort();
    scheduler.tasks.close();
    drop(tokio::time::timeout(Duration::from_millis(200), scheduler.tasks.wait()).await);
    scheduler.store.close().await;
    result
}

//! Accepts connections and passes their requests to `s3s`, until told to stop.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use http::header::CONTENT_ENCODING;
use http::{HeaderMap, HeaderValue, Request};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::sys::socket::{setsockopt, sockopt};
use s3s::auth::{S3Auth, SecretKey};
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{S3Result, s3_error};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::Config;
use crate::service::Service;
use crate::storage::{StartError, Storage};

/// Further connections wait in the kernel's queue. Each may hold about 1 MiB while it transfers.
const MOST_CONNECTIONS: usize = 1024;
/// Limit for a request's head to arrive, and for the time between requests.
const HEAD_LIMIT: Duration = Duration::from_secs(75);
/// Limit for a client to acknowledge what was sent to it, in milliseconds.
const UNREAD_LIMIT_MS: u32 = 120_000;
/// Limit for requests in flight when the server is told to stop.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);
/// Pause after a failed accept, whose usual cause is running out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why the server could not run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Its storage could not be opened.
    #[error("cannot open the local S3 storage")]
    Start(#[from] StartError),
    /// Opening the storage did not complete.
    #[error("opening the local S3 storage was given up")]
    Abandoned(#[source] tokio::task::JoinError),
    /// The listener cannot be used.
    #[error("cannot listen for S3 requests")]
    Listen(#[source] io::Error),
}

/// Serves S3 on `listener` until `shutdown` completes, then lets requests in flight finish (10 s at most).
///
/// Everything that was answered is on disk, so the process may be killed at any time. Disk work runs on the runtime's
/// blocking threads. Addressing is path-style; every request must be signed with the configured key.
pub fn serve(
    config: Config,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> BoxFuture<'static, Result<(), ServeError>> {
    boxed(config, listener, Box::pin(shutdown))
}

/// Boxed here, so that the server is compiled once, with this crate, and not with each of its callers.
fn boxed(
    config: Config,
    listener: TcpListener,
    shutdown: BoxFuture<'static, ()>,
) -> BoxFuture<'static, Result<(), ServeError>> {
    Box::pin(run(config, listener, shutdown))
}

async fn run(config: Config, listener: TcpListener, shutdown: BoxFuture<'static, ()>) -> Result<(), ServeError> {
    let Config {
        root,
        access_key,
        secret_key,
        buckets,
    } = config;
    let address = listener.local_addr().map_err(ServeError::Listen)?;
    let opened = tokio::task::spawn_blocking(move || {
        let storage = Storage::open(&root, &buckets)?;
        tracing::info!(root = %root.display(), %address, "local S3 storage is open");
        Ok::<_, StartError>(storage)
    });
    let storage = Arc::new(opened.await.map_err(ServeError::Abandoned)??);
    let mut builder = S3ServiceBuilder::new(Service::new(storage));
    builder.set_auth(OneKey {
        access_key,
        secret_key: SecretKey::from(secret_key),
    });
    accept(&listener, &builder.build(), shutdown).await;
    Ok(())
}

async fn accept(listener: &TcpListener, service: &S3Service, shutdown: impl Future<Output = ()> + Send) {
    let mut shutdown = std::pin::pin!(shutdown);
    let (stop, stopped) = watch::channel(false);
    let room = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let accepted = async {
            // Never closed, so it always gives a permit in the end.
            let permit = room.clone().acquire_owned().await.ok();
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            () = &mut shutdown => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            accepted = accepted => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let (service, stopped) = (service.clone(), stopped.clone());
                connections.spawn(async move {
                    converse(stream, service, stopped).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept an S3 connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    // Fails only if no connection is left to receive it.
    let _ = stop.send(true);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN_LIMIT, drained).await.is_err() {
        tracing::warn!("S3 requests that did not end in time are broken off");
    }
}

async fn converse(stream: TcpStream, service: S3Service, mut stopped: watch::Receiver<bool>) {
    // Responses are often smaller than a packet, and someone waits for each.
    let _ = stream.set_nodelay(true);
    // If a client stops reading its response, the kernel gives it up; nothing above TCP would notice.
    let _ = setsockopt(&stream, sockopt::TcpUserTimeout, &UNREAD_LIMIT_MS);
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_LIMIT);
    let answer = service_fn(|mut request: Request<Incoming>| {
        join_content_encodings(request.headers_mut());
        hyper::service::Service::call(&service, request)
    });
    let mut connection = std::pin::pin!(http.serve_connection(TokioIo::new(stream), answer));
    // `wait_for` returns a lock guard, which must be dropped.
    let told = async { drop(stopped.wait_for(|stopped| *stopped).await) };
    let result = tokio::select! {
        result = &mut connection => result,
        () = told => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        // Clients leave all the time; a fault of ours has been logged where it happened.
        tracing::debug!(%error, "an S3 connection broke");
    }
}

/// Clients that send a compressed object as aws-chunked send two `content-encoding` headers, which `s3s` refuses. One
/// header with both values means the same, to HTTP and to the signature.
fn join_content_encodings(headers: &mut HeaderMap) {
    let values: Vec<&[u8]> = headers
        .get_all(CONTENT_ENCODING)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    if values.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&values.join(&b","[..]))
    {
        headers.insert(CONTENT_ENCODING, joined);
    }
}

/// The only key that is accepted.
struct OneKey {
    access_key: String,
    secret_key: SecretKey,
}

#[async_trait::async_trait]
impl S3Auth for OneKey {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        if access_key == self.access_key {
            Ok(self.secret_key.clone())
        } else {
            Err(s3_error!(InvalidAccessKeyId, "the access key id is not known here"))
        }
    }
}

//! HTTP/2 to one destination, with prior knowledge (RFC 9113, 3.3): both ends know that it is spoken, so nothing is
//! negotiated, in clear or inside TLS. Requests share connections, and trailers pass in both directions.
//!
//! ```text
//! open ──request──> one stream more ──response's body is over──> one stream less
//!   └── closed while idle, or by the destination ──> open streams end, and the connection with the last
//! ```

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use http::header::{HOST, TRANSFER_ENCODING, UPGRADE};
use http::uri::{Authority, Scheme};
use http::{HeaderValue, Request, Response, Uri, Version};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::rt::{Read, Write};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;

use crate::connection_pool::{HeadLimits, IDLE, Reply, SendError, head_bytes};
use crate::frame_budget::FrameBudget;
use crate::watched::WatchedStream;

/// Bytes of a response's body that a destination may send before they are read.
const WINDOW: u32 = 128 << 10;
/// The same for all streams of a connection: a reader that stops must not stop the others.
const CONNECTION_WINDOW: u32 = WINDOW * 512;
/// What a header line counts in addition to its name and value (RFC 9113, 6.5.2).
const LINE: usize = 32;

/// How connections to a destination are used.
#[derive(Debug, Clone, Copy)]
pub struct StreamLimits {
    /// Number of streams on one connection, after which another is opened. What the destination allows holds too.
    pub streams: usize,
    /// How often a destination must prove that it is there while streams are open. A frozen one could not.
    pub ping: Option<Duration>,
    /// Whether the destination is believed to send no more frames than it needs.
    pub is_trusted: bool,
}

impl StreamLimits {
    /// For a function: one connection, whatever its concurrency.
    pub const FUNCTION: Self = Self {
        streams: usize::MAX,
        ping: None,
        is_trusted: false,
    };
    /// For a worker, whose server takes 200.
    pub const PLATFORM: Self = Self {
        streams: 100,
        ping: Some(Duration::from_secs(10)),
        is_trusted: true,
    };
}

/// Connections to one destination. Clones share them.
#[derive(Clone)]
pub struct Http2Connections {
    shared: Arc<Shared>,
}

struct Shared {
    open: Mutex<Vec<OpenConnection>>,
    /// Held while a connection is made, so that requests that come meanwhile share it.
    opening: tokio::sync::Mutex<()>,
    limits: HeadLimits,
    streams: StreamLimits,
}

struct OpenConnection {
    sender: SendRequest<Body>,
    /// One more for each open stream.
    streams: Arc<()>,
    used: Instant,
}

/// A connection for one request.
struct CheckedOutConnection {
    sender: SendRequest<Body>,
    stream: Arc<()>,
    is_new: bool,
}

impl Http2Connections {
    /// No connections yet, with these limits on responses and streams.
    pub fn new(limits: HeadLimits, streams: StreamLimits) -> Self {
        let shared = Shared {
            open: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
            limits,
            streams,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Sends a request and waits for the response's head. Its authority is that of the `Host` header, or of its URI.
    /// `connect` opens connections.
    ///
    /// # Errors
    /// If no connection can be made, or the connection or the stream breaks.
    pub async fn send<F, T, E>(
        &self,
        mut request: Request<Body>,
        connect: impl Fn() -> F,
    ) -> Result<Response<Reply>, SendError>
    where
        F: Future<Output = Result<T, E>>,
        T: Read + Write + Unpin + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        address(&mut request);
        let limits = self.shared.limits;
        let mut again = false;
        loop {
            let CheckedOutConnection {
                mut sender,
                stream,
                is_new,
            } = self.take(&connect, again).await?;
            match sender.try_send_request(request).await {
                Ok(answer) if head_bytes(answer.headers()) > limits.bytes || answer.headers().len() > limits.lines => {
                    return Err(SendError::HeadTooLarge);
                }
                Ok(answer) => return Ok(answer.map(|body| Reply::of_stream(body, stream))),
                Err(mut error) => match error.take_message() {
                    // The connection was closed, and the request has not been seen.
                    Some(unsent) if !is_new => (request, again) = (unsent, true),
                    _ => return Err(error.into_error().into()),
                },
            }
        }
    }

    /// Closes connections without open streams that were unused for long. Returns whether any are left.
    pub fn sweep(&self) -> bool {
        let old = Instant::now().checked_sub(IDLE);
        let mut open = self.shared.open.lock();
        open.retain(|c| !c.sender.is_closed() && (c.streams() > 0 || Some(c.used) >= old));
        !open.is_empty()
    }

    /// Closes all connections: at once, or with the last of its streams. New requests get others.
    pub fn close_idle(&self) {
        self.shared.open.lock().clear();
    }

    async fn take<F, T, E>(&self, connect: &impl Fn() -> F, new: bool) -> Result<CheckedOutConnection, SendError>
    where
        F: Future<Output = Result<T, E>>,
        T: Read + Write + Unpin + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if !new && let Some(taken) = self.shared.free() {
            return Ok(taken);
        }
        let _alone = self.shared.opening.lock().await;
        if !new && let Some(taken) = self.shared.free() {
            return Ok(taken);
        }
        let stream = connect().await.map_err(|e| SendError::Connect(e.into()))?;
        let sender = self.shared.open(stream).await?;
        let streams = Arc::new(());
        self.shared.open.lock().push(OpenConnection {
            sender: sender.clone(),
            streams: Arc::clone(&streams),
            used: Instant::now(),
        });
        Ok(CheckedOutConnection {
            sender,
            stream: streams,
            is_new: true,
        })
    }
}

impl Shared {
    /// A connection that takes another stream.
    fn free(&self) -> Option<CheckedOutConnection> {
        let mut open = self.open.lock();
        open.retain(|connection| !connection.sender.is_closed());
        let free = open.iter_mut().find(|c| c.streams() < self.streams.streams)?;
        free.used = Instant::now();
        Some(CheckedOutConnection {
            sender: free.sender.clone(),
            stream: Arc::clone(&free.streams),
            is_new: false,
        })
    }

    async fn open<T>(&self, stream: T) -> Result<SendRequest<Body>, SendError>
    where
        T: Read + Write + Unpin + Send + 'static,
    {
        let head = self.limits.bytes + self.limits.lines * LINE;
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(u32::try_from(head).unwrap_or(u32::MAX));
        if let Some(every) = self.streams.ping {
            builder.keep_alive_interval(every).keep_alive_timeout(every);
        }
        let failed = |e: hyper::Error| SendError::Connect(e.into());
        // Streams are told of a connection's end, too.
        if self.streams.is_trusted {
            let (sender, connection) = builder.handshake(stream).await.map_err(failed)?;
            tokio::spawn(connection);
            return Ok(sender);
        }
        let stream = TokioIo::new(WatchedStream::new(TokioIo::new(stream), FrameBudget::new()));
        let (sender, connection) = builder.handshake(stream).await.map_err(failed)?;
        tokio::spawn(connection);
        Ok(sender)
    }
}

impl OpenConnection {
    fn streams(&self) -> usize {
        Arc::strong_count(&self.streams) - 1
    }
}

/// Rewrites the request's head to the form of HTTP/2.
fn address(request: &mut Request<Body>) {
    let named = request
        .headers()
        .get(HOST)
        .and_then(|host| Authority::try_from(host.as_bytes()).ok());
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.authority = named.or(parts.authority).or(Some(Authority::from_static("localhost")));
    parts.scheme = parts.scheme.or(Some(Scheme::HTTP));
    parts.path_and_query = parts.path_and_query.or_else(|| "/".parse().ok());
    // All parts of a URI are there.
    *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
    *request.version_mut() = Version::HTTP_2;
    for name in [HOST, TRANSFER_ENCODING, UPGRADE, http::header::CONNECTION] {
        request.headers_mut().remove(name);
    }
}

/// Whether a client accepts trailers, which gRPC needs.
pub fn takes_trailers(headers: &http::HeaderMap) -> bool {
    let named = headers.get_all(http::header::TE).iter();
    let mut named = named.filter_map(|v| v.to_str().ok()).flat_map(|v| v.split(','));
    named.any(|coding| coding.trim().eq_ignore_ascii_case("trailers"))
}

/// What a hop says that takes trailers.
pub(crate) const TRAILERS: HeaderValue = HeaderValue::from_static("trailers");

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use bytes::Bytes;
    use http::HeaderMap;
    use http_body::Frame;
    use http_body_util::{BodyExt as _, StreamBody};
    use hyper::body::Incoming;
    use hyper::service::service_fn;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
    use tokio::sync::mpsc;

    use super::*;

    type Connecting = std::future::Ready<Result<TokioIo<DuplexStream>, Infallible>>;

    /// A server that sends a body's frames back, as a destination of which the number of connections is known.
    fn echoing() -> (impl Fn() -> Connecting, mpsc::UnboundedReceiver<()>) {
        let (made, connections) = mpsc::unbounded_channel();
        let connect = move || {
            let (near, far) = tokio::io::duplex(1 << 16);
            let service = service_fn(|request: Request<Incoming>| async move {
                let said = request.uri().to_string();
                let mut answer = Response::new(request.into_body());
                answer.headers_mut().insert("x-uri", said.parse().unwrap());
                Ok::<_, Infallible>(answer)
            });
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            let made = made.clone();
            tokio::spawn(async move {
                made.send(()).unwrap();
                server.serve_connection(TokioIo::new(far), service).await
            });
            std::future::ready(Ok(TokioIo::new(near)))
        };
        (connect, connections)
    }

    fn request(body: Body) -> Request<Body> {
        let request = Request::post("http://10.0.0.1/a?b").header(HOST, "f.example");
        request.body(body).unwrap()
    }

    #[tokio::test]
    async fn trailers_pass_both_ways_and_requests_share_a_connection() {
        let (connect, mut made) = echoing();
        let connections = Http2Connections::new(HeadLimits::FUNCTION, StreamLimits::FUNCTION);
        let (frames, sent) = mpsc::channel(4);
        let sent = tokio_stream::wrappers::ReceiverStream::new(sent);
        let body = Body::new(StreamBody::new(futures::StreamExt::map(sent, Ok::<_, Infallible>)));
        let answer = connections.send(request(body), &connect).await.unwrap();
        assert_eq!(answer.headers()["x-uri"], "http://f.example/a?b");
        let mut body = answer.into_body();
        for said in ["one", "two"] {
            frames.send(Frame::data(Bytes::from(said))).await.unwrap();
            assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), said);
        }
        let other = connections.send(request(Body::from("other")), &connect).await.unwrap();
        assert_eq!(other.into_body().collect().await.unwrap().to_bytes(), "other");
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        frames.send(Frame::trailers(trailers.clone())).await.unwrap();
        assert_eq!(body.frame().await.unwrap().unwrap().into_trailers().unwrap(), trailers);
        assert!(made.recv().await.is_some() && made.is_empty());
    }

    #[tokio::test]
    async fn a_full_connection_is_joined_by_another_and_closed_ones_by_none() {
        let (connect, mut made) = echoing();
        let streams = StreamLimits {
            streams: 1,
            ..StreamLimits::FUNCTION
        };
        let connections = Http2Connections::new(HeadLimits::FUNCTION, streams);
        let endless = || Body::from_stream(futures::stream::pending::<Result<Bytes, Infallible>>());
        let one = connections.send(request(endless()), &connect).await.unwrap();
        let two = connections.send(request(endless()), &connect).await.unwrap();
        drop((made.recv().await, made.recv().await, one));
        assert!(connections.sweep());
        connections.close_idle();
        assert!(!connections.sweep());
        let answer = connections.send(request(Body::from("x")), &connect).await.unwrap();
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "x");
        assert!(made.recv().await.is_some(), "the closed ones were used");
        drop(two);
    }

    /// Answers the first request, and then sends pings as long as it can. Says how many.
    async fn flood(mut far: DuplexStream) -> usize {
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        // `:status: 200`, which ends the first stream.
        let answer = [0, 0, 1, 1, 5, 0, 0, 0, 1, 0x88];
        far.write_all(&settings).await.unwrap();
        let mut seen = Vec::new();
        let head = |seen: &[u8]| {
            let mut at = 24;
            while let Some(header) = seen.get(at..at + 9) {
                if header[3] == 1 {
                    return true;
                }
                at += 9 + usize::from(header[1]) * 256 + usize::from(header[2]);
            }
            false
        };
        while !head(&seen) {
            far.read_buf(&mut seen).await.unwrap();
        }
        far.write_all(&answer).await.unwrap();
        let (mut reads, mut writes) = tokio::io::split(far);
        tokio::spawn(async move { tokio::io::copy(&mut reads, &mut tokio::io::sink()).await });
        let pings = [[0, 0, 8, 6, 0, 0, 0, 0, 0].as_slice(), &[7; 8]].concat().repeat(100);
        let mut sent = 0;
        while writes.write_all(&pings).await.is_ok() {
            sent += 100;
        }
        sent
    }

    #[tokio::test]
    async fn a_destination_that_floods_its_connection_loses_it() {
        let (told, mut sent) = mpsc::unbounded_channel();
        let connect = move || {
            let (near, far) = tokio::io::duplex(1 << 16);
            let told = told.clone();
            tokio::spawn(async move { told.send(flood(far).await) });
            std::future::ready(Ok::<_, Infallible>(TokioIo::new(near)))
        };
        let connections = Http2Connections::new(HeadLimits::FUNCTION, StreamLimits::FUNCTION);
        let answer = connections.send(request(Body::empty()), &connect).await.unwrap();
        assert_eq!(answer.status(), 200);
        drop(answer);
        let sent = tokio::time::timeout(Duration::from_secs(20), sent.recv()).await;
        let sent = sent.unwrap().unwrap();
        assert!((900..30_000).contains(&sent), "{sent}");
        assert!(!connections.sweep(), "the connection is kept");
    }
}

//! The HTTP client, the same for all subjects: one connection, one request at a time, the whole body read.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HOST};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rekindle_wire::headers::SERVER_TIMING;
use tokio::net::TcpStream;

/// More than any start takes: anything slower hangs.
const LIMIT: Duration = Duration::from_secs(60);
/// Pause between attempts to connect: short compared with any start, and long compared with an attempt.
const ATTEMPT_PAUSE: Duration = Duration::from_micros(200);
/// How much of an unexpected response is shown.
const TOLD_MAX: usize = 300;

/// A connection over loopback.
pub(crate) struct Connection {
    sender: SendRequest<Empty<Bytes>>,
    address: SocketAddr,
}

/// A response, read to its last byte.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Connection {
    /// Connects to a port of this machine.
    pub(crate) async fn open(port: u16) -> Result<Self> {
        Self::open_at(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await
    }

    /// Connects to an address of this machine.
    pub(crate) async fn open_at(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address)
            .await
            .with_context(|| format!("{address}: no connection"))?;
        Self::over(stream, address).await
    }

    /// Connects as soon as the port is open. `still` is called between attempts and fails if that can no longer happen.
    pub(crate) async fn open_when_listening(port: u16, mut still: impl FnMut() -> Result<()>) -> Result<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let deadline = Instant::now() + LIMIT;
        loop {
            match TcpStream::connect(address).await {
                Ok(stream) => return Self::over(stream, address).await,
                Err(e) if e.kind() == ErrorKind::ConnectionRefused && Instant::now() < deadline => still()?,
                Err(e) => return Err(e).with_context(|| format!("{address}: no connection")),
            }
            // Not tokio's sleep, which counts in milliseconds; nothing else runs on this thread meanwhile.
            std::thread::sleep(ATTEMPT_PAUSE);
        }
    }

    async fn over(stream: TcpStream, address: SocketAddr) -> Result<Self> {
        stream.set_nodelay(true).context("no TCP_NODELAY")?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .context("no HTTP connection")?;
        tokio::spawn(async move {
            // A caller that waits for a response on it learns how it ended.
            let _ended = connection.await;
        });
        Ok(Self { sender, address })
    }

    /// Sends a request without a body and reads the whole response.
    pub(crate) async fn call(&mut self, method: Method, path: &str, headers: &[(&str, &str)]) -> Result<Reply> {
        let mut request = Request::builder()
            .method(method.clone())
            .uri(path)
            .header(HOST, self.address.to_string());
        if method == Method::POST {
            request = request.header(CONTENT_LENGTH, 0);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Empty::new()).context("not a request")?;
        let exchange = async {
            self.sender.ready().await.context("the connection is closed")?;
            let answer = self.sender.send_request(request).await.context("no answer")?;
            let (parts, body) = answer.into_parts();
            let body = body.collect().await.context("half an answer")?.to_bytes();
            anyhow::Ok(Reply {
                status: parts.status,
                headers: parts.headers,
                body,
            })
        };
        match tokio::time::timeout(LIMIT, exchange).await {
            Ok(outcome) => outcome.with_context(|| format!("{method} {path} at {}", self.address)),
            Err(_) => bail!("{method} {path} at {}: no answer within {LIMIT:?}", self.address),
        }
    }
}

impl Reply {
    /// The same response if it is the function's, a page of its buffer. Otherwise an error that shows what came.
    pub(crate) fn of_function(self) -> Result<Self> {
        if self.status != StatusCode::OK || !self.body.starts_with(b"{\"page\"") {
            bail!("{}: {}", self.status, self.text());
        }
        Ok(self)
    }

    /// A header's value; empty if there is none.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default()
    }

    /// The phases in `Server-Timing`. A phase that ran twice counts twice.
    pub(crate) fn phases(&self) -> BTreeMap<String, f64> {
        let mut phases = BTreeMap::new();
        for value in self.headers.get_all(SERVER_TIMING) {
            for (name, ms) in value.to_str().unwrap_or_default().split(',').filter_map(phase) {
                *phases.entry(name.to_owned()).or_default() += ms;
            }
        }
        phases
    }

    /// The beginning of the body, for a message.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).chars().take(TOLD_MAX).collect()
    }
}

/// Parses `name;dur=1.5`, with other parameters or without.
fn phase(metric: &str) -> Option<(&str, f64)> {
    let mut parts = metric.split(';').map(str::trim);
    let name = parts.next().filter(|n| !n.is_empty())?;
    let ms = parts.find_map(|p| p.strip_prefix("dur="))?.parse().ok()?;
    Some((name, ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, timing: &str, body: &'static [u8]) -> Reply {
        let mut headers = HeaderMap::new();
        headers.insert(SERVER_TIMING, timing.parse().unwrap());
        Reply {
            status: StatusCode::from_u16(status).unwrap(),
            headers,
            body: Bytes::from_static(body),
        }
    }

    #[test]
    fn phases_are_read_from_server_timing() {
        let phases = answer(
            200,
            "route;dur=0.25, cache;desc=hit, criu;desc=\"x\";dur=7, criu;dur=1",
            b"",
        )
        .phases();
        assert_eq!(
            phases,
            BTreeMap::from([("route".to_owned(), 0.25), ("criu".to_owned(), 8.0)])
        );
    }

    #[test]
    fn only_the_functions_own_answer_counts() {
        assert!(answer(200, "", b"{\"page\": 4096}").of_function().is_ok());
        assert!(answer(200, "", b"{\"code\": \"x\"}").of_function().is_err());
        let error = answer(503, "", b"{\"page\": 4096}")
            .of_function()
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("503"), "{error}");
    }
}

//! The whole `http` contract in one static binary without dependencies: serve HTTP/1.1 on `$PORT`.
//!
//! `GET /` greets, anything posted comes back, and the two hooks count how often this process was snapshotted and
//! restored.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{env, thread};

const MAX_BODY: u64 = 16 << 20;
const MAX_HEAD: u64 = 64 << 10;

static SNAPSHOTS: AtomicU64 = AtomicU64::new(0);
static RESTORES: AtomicU64 = AtomicU64::new(0);

fn main() -> io::Result<()> {
    let port = env::var("PORT").ok().and_then(|p| p.parse().ok()).unwrap_or(8080);
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    for stream in listener.incoming().flatten() {
        thread::spawn(move || {
            // An error here is the peer's leaving.
            let _ = serve(stream);
        });
    }
    Ok(())
}

/// Answers requests on one connection until the peer closes it.
fn serve(stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut writer = stream;
    while let Some(request) = Request::read(&mut reader)? {
        let (status, body) = answer(&request);
        let mut response = format!(
            "HTTP/1.1 {status}\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        if request.method != "HEAD" {
            response.extend_from_slice(&body);
        }
        writer.write_all(&response)?;
    }
    Ok(())
}

fn answer(request: &Request) -> (&'static str, Vec<u8>) {
    match (request.method.as_str(), request.path.as_str()) {
        ("POST", "/hooks/before-snapshot") => {
            SNAPSHOTS.fetch_add(1, Ordering::Relaxed);
            ("200 OK", Vec::new())
        }
        ("POST", "/hooks/after-restore") => {
            RESTORES.fetch_add(1, Ordering::Relaxed);
            ("200 OK", Vec::new())
        }
        ("GET" | "HEAD", "/") => {
            let text = format!(
                "Hello from a static binary; snapshots {}, restores {}\n",
                SNAPSHOTS.load(Ordering::Relaxed),
                RESTORES.load(Ordering::Relaxed)
            );
            ("200 OK", text.into_bytes())
        }
        ("POST" | "PUT", _) => ("200 OK", request.body.clone()),
        _ => ("404 Not Found", b"nothing here\n".to_vec()),
    }
}

struct Request {
    method: String,
    path: String,
    body: Vec<u8>,
}

impl Request {
    /// The next request, or `None` when the peer closed the connection.
    fn read(reader: &mut impl BufRead) -> io::Result<Option<Self>> {
        let mut head = reader.by_ref().take(MAX_HEAD);
        let mut line = String::new();
        if head.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let mut words = line.split_ascii_whitespace();
        let (Some(method), Some(target)) = (words.next(), words.next()) else {
            return Err(refused("no request line"));
        };
        let (method, path) = (method.to_owned(), target.split('?').next().unwrap_or(target).to_owned());
        let (mut length, mut chunked) = (0, false);
        loop {
            let mut line = String::new();
            if head.read_line(&mut line)? == 0 {
                return Err(refused("the head has no end"));
            }
            let line = line.trim_end();
            if line.is_empty() {
                break;
            }
            let Some((name, value)) = line.split_once(':') else {
                return Err(refused("a header without colon"));
            };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().map_err(|_| refused("content-length is no number"))?;
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                chunked = true;
            }
        }
        let body = if chunked { read_chunks(reader)? } else { read_exactly(reader, length)? };
        Ok(Some(Self { method, path, body }))
    }
}

fn read_exactly(reader: &mut impl BufRead, length: u64) -> io::Result<Vec<u8>> {
    if length > MAX_BODY {
        return Err(refused("the body is too large"));
    }
    let mut body = Vec::new();
    reader.by_ref().take(length).read_to_end(&mut body)?;
    if body.len() as u64 == length { Ok(body) } else { Err(refused("the body ended early")) }
}

fn read_chunks(reader: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut line = String::new();
        reader.by_ref().take(1024).read_line(&mut line)?;
        let size = line.split(';').next().unwrap_or_default().trim();
        let size = u64::from_str_radix(size, 16).map_err(|_| refused("a chunk without size"))?;
        if body.len() as u64 + size > MAX_BODY {
            return Err(refused("the body is too large"));
        }
        if size == 0 {
            // Trailers, up to the empty line.
            while reader.by_ref().take(1024).read_line(&mut line)? > 2 {
                line.clear();
            }
            return Ok(body);
        }
        body.extend(read_exactly(reader, size)?);
        read_exactly(reader, 2)?;
    }
}

fn refused(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

//! HTTP/1.1 of a server, as far as runtimes, extensions and the platform speak it.

use std::io::{self, BufRead, Read, Write};

/// Maximum size of a request's head, or of a body's trailers, in bytes. Runtimes put the causes of errors into a
/// header.
const HEAD_MAX: u64 = 2 << 20;
/// Maximum length of a chunk's size with its extensions, in bytes.
const CHUNK_LINE_MAX: u64 = 4096;

/// Header fields with lower-case names, in the order in which they came.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Headers(pub(crate) Vec<(String, String)>);

impl Headers {
    /// The first value of a field.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    /// Whether one of the words in a field is `word`, in whatever case.
    fn has_word(&self, name: &str, word: &str) -> bool {
        let fields = self.0.iter().filter(|(known, _)| known == name);
        fields
            .flat_map(|(_, value)| value.split(','))
            .any(|each| each.trim().eq_ignore_ascii_case(word))
    }

    /// Reads fields up to the empty line.
    fn read(from: &mut impl BufRead, left: &mut u64) -> io::Result<Self> {
        let mut fields = Vec::new();
        loop {
            let line = line(from, left)?;
            if line.is_empty() {
                return Ok(Self(fields));
            }
            let (name, value) = line
                .split_once(':')
                .ok_or_else(|| malformed("a header field has no colon"))?;
            if name.is_empty() || name.contains([' ', '\t']) {
                return Err(malformed("a header field has no name"));
            }
            fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
}

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) headers: Headers,
    framing: Framing,
    /// Whether another request may follow on the connection.
    pub(crate) keep_alive: bool,
    /// Whether the client waits for leave to send the body.
    expects: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Framing {
    Length(u64),
    Chunked,
}

impl Request {
    /// Reads the next head. `None` if the client has closed the connection.
    pub(crate) fn read(from: &mut impl BufRead) -> io::Result<Option<Self>> {
        if from.fill_buf()?.is_empty() {
            return Ok(None);
        }
        let mut left = HEAD_MAX;
        let start = line(from, &mut left)?;
        let mut words = start.split(' ');
        let (Some(method), Some(target), Some(version), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(malformed("the request line has not three words"));
        };
        let headers = Headers::read(from, &mut left)?;
        let framing = match headers.get("content-length") {
            _ if headers.has_word("transfer-encoding", "chunked") => Framing::Chunked,
            Some(length) => Framing::Length(length.parse().map_err(|_| malformed("a content length is no number"))?),
            None => Framing::Length(0),
        };
        Ok(Some(Self {
            method: method.to_owned(),
            target: target.to_owned(),
            keep_alive: version == "HTTP/1.1" && !headers.has_word("connection", "close"),
            expects: headers.has_word("expect", "100-continue") && framing != Framing::Length(0),
            headers,
            framing,
        }))
    }

    /// The request's path, without its query.
    pub(crate) fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// The body, to be read to its end. Tells a client that waits for it to go on.
    pub(crate) fn body<'a, R: BufRead>(&self, from: &'a mut R, to: &mut impl Write) -> io::Result<Body<'a, R>> {
        if self.expects {
            to.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        let (left, ended) = match self.framing {
            Framing::Length(length) => (length, length == 0),
            Framing::Chunked => (0, false),
        };
        Ok(Body {
            from,
            is_chunked: self.framing == Framing::Chunked,
            left,
            began: false,
            ended,
            trailers: Headers::default(),
        })
    }
}

pub(crate) struct Body<'a, R> {
    from: &'a mut R,
    is_chunked: bool,
    /// Bytes until the end of the body, or of the current chunk.
    left: u64,
    /// Whether a chunk was read, whose end is still to be read.
    began: bool,
    ended: bool,
    /// The trailers, once the body has ended.
    pub(crate) trailers: Headers,
}

impl<R: BufRead> Body<'_, R> {
    /// Reads the whole body, or `None` if it has more than `most` bytes.
    pub(crate) fn read_all(&mut self, most: usize) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        self.by_ref().take(most as u64 + 1).read_to_end(&mut bytes)?;
        Ok((bytes.len() <= most).then_some(bytes))
    }

    /// Reads and drops the remainder.
    pub(crate) fn skip(&mut self) -> io::Result<()> {
        io::copy(self, &mut io::sink()).map(drop)
    }

    fn next_chunk(&mut self) -> io::Result<()> {
        let mut most = CHUNK_LINE_MAX;
        if self.began && !line(self.from, &mut most)?.is_empty() {
            return Err(malformed("a chunk does not end where it says"));
        }
        self.began = true;
        let size = line(self.from, &mut most)?;
        let size = size.split(';').next().unwrap_or_default().trim();
        self.left = u64::from_str_radix(size, 16).map_err(|_| malformed("a chunk has no size"))?;
        if self.left == 0 {
            self.trailers = Headers::read(self.from, &mut HEAD_MAX.clone())?;
            self.ended = true;
        }
        Ok(())
    }
}

impl<R: BufRead> Read for Body<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.is_chunked && self.left == 0 && !self.ended {
            self.next_chunk()?;
        }
        if self.ended || into.is_empty() {
            return Ok(0);
        }
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(into.len());
        let read = self.from.read(&mut into[..most])?;
        if read == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the connection ended within a body",
            ));
        }
        self.left -= read as u64;
        self.ended = !self.is_chunked && self.left == 0;
        Ok(read)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Head {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
}

impl Head {
    pub(crate) fn new(status: u16) -> Self {
        Self {
            status,
            headers: Vec::new(),
        }
    }

    pub(crate) fn of_type(status: u16, content_type: &str) -> Self {
        Self::new(status).with("content-type", content_type)
    }

    pub(crate) fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    fn text(&self) -> String {
        let mut text = format!("HTTP/1.1 {} {}\r\n", self.status, reason(self.status));
        for (name, value) in &self.headers {
            text.extend([name.as_str(), ": ", value, "\r\n"]);
        }
        text
    }

    /// Writes the response with its whole body, which is left out if the request was `HEAD`.
    pub(crate) fn send(&self, to: &mut impl Write, body: &[u8], is_head: bool) -> io::Result<()> {
        let has_body = self.may_have_body();
        let length = if has_body {
            format!("content-length: {}\r\n", body.len())
        } else {
            String::new()
        };
        let mut bytes = (self.text() + &length + "\r\n").into_bytes();
        if has_body && !is_head {
            bytes.extend_from_slice(body);
        }
        to.write_all(&bytes)
    }

    /// Whether a response of this status may have a body.
    pub(crate) fn may_have_body(&self) -> bool {
        !matches!(self.status, 204 | 304)
    }

    /// Writes the head of a response whose body follows in chunks.
    pub(crate) fn begin(&self, to: &mut impl Write) -> io::Result<()> {
        to.write_all((self.text() + "transfer-encoding: chunked\r\n\r\n").as_bytes())
    }
}

/// Writes one chunk of a body. An empty one would end it, and is left out.
pub(crate) fn send_chunk(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
    chunk.extend_from_slice(bytes);
    chunk.extend_from_slice(b"\r\n");
    to.write_all(&chunk)
}

pub(crate) fn end_chunks(to: &mut impl Write) -> io::Result<()> {
    to.write_all(b"0\r\n\r\n")
}

/// Whether a name and a value may stand in a response's head.
pub(crate) fn is_field(name: &str, value: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_token) && !value.bytes().any(|byte| matches!(byte, b'\r' | b'\n' | 0))
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        202 => "Accepted",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        413 => "Request Entity Too Large",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        _ => "",
    }
}

/// Reads a line without its end. `left` is how many bytes may still be read.
fn line(from: &mut impl BufRead, left: &mut u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    let read = from.by_ref().take(*left).read_until(b'\n', &mut bytes)?;
    *left -= read as u64;
    if bytes.pop() != Some(b'\n') {
        return Err(malformed(if *left == 0 {
            "a head is too long"
        } else {
            "a line has no end"
        }));
    }
    if bytes.last() == Some(&b'\r') {
        bytes.pop();
    }
    // Header values may have bytes of other character sets.
    Ok(String::from_utf8(bytes).unwrap_or_else(|e| e.into_bytes().into_iter().map(char::from).collect()))
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Request, Vec<u8>, Headers, Vec<u8>) {
        let (mut from, mut to) = (text.as_bytes(), Vec::new());
        let request = Request::read(&mut from).unwrap().unwrap();
        let mut body = request.body(&mut from, &mut to).unwrap();
        let bytes = body.read_all(100).unwrap().unwrap();
        let trailers = body.trailers;
        (request, bytes, trailers, to)
    }

    #[test]
    fn bodies_have_a_length_or_chunks_and_trailers() {
        let (request, body, ..) = read("POST /a?b=c HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabcGET");
        assert_eq!(
            (request.method.as_str(), request.path(), body.as_slice()),
            ("POST", "/a", &b"abc"[..])
        );
        assert!(request.keep_alive);
        let (request, body, trailers, to) = read(
            "POST / HTTP/1.1\nTransfer-Encoding: chunked\nExpect: 100-continue\nConnection: close\n\n\
             3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nA-Trailer: yes\r\n\r\n",
        );
        assert_eq!(
            (body.as_slice(), trailers.get("a-trailer")),
            (&b"abc0123456789"[..], Some("yes"))
        );
        assert_eq!(to, b"HTTP/1.1 100 Continue\r\n\r\n");
        assert!(!request.keep_alive);
        assert_eq!(read("GET / HTTP/1.1\r\n\r\n").1, b"");
    }

    #[test]
    fn what_is_cut_off_or_malformed_is_an_error() {
        assert!(Request::read(&mut &b""[..]).unwrap().is_none());
        for text in [
            "GET /\r\n\r\n",
            "GET / HTTP/1.1\r\nno colon\r\n\r\n",
            "GET / HTTP/1.1\r\n: x\r\n\r\n",
            "GET / HT",
        ] {
            assert!(Request::read(&mut text.as_bytes()).is_err(), "{text}");
        }
        for text in [
            "Content-Length: 4\r\n\r\nabc",
            "Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
        ] {
            let text = format!("POST / HTTP/1.1\r\n{text}");
            let mut from = text.as_bytes();
            let request = Request::read(&mut from).unwrap().unwrap();
            assert!(
                request.body(&mut from, &mut Vec::new()).unwrap().skip().is_err(),
                "{text}"
            );
        }
    }

    #[test]
    fn a_body_above_the_limit_is_told_from_one_at_it() {
        let text = "POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nabcd";
        for (most, is_read) in [(3, false), (4, true)] {
            let mut from = text.as_bytes();
            let request = Request::read(&mut from).unwrap().unwrap();
            let mut body = request.body(&mut from, &mut Vec::new()).unwrap();
            assert_eq!(body.read_all(most).unwrap().is_some(), is_read);
            body.skip().unwrap();
        }
    }

    #[test]
    fn responses_say_how_long_they_are() {
        let mut to = Vec::new();
        Head::of_type(200, "text/plain").send(&mut to, b"abc", false).unwrap();
        assert_eq!(
            to,
            b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 3\r\n\r\nabc"
        );
        to.clear();
        Head::new(200).begin(&mut to).unwrap();
        send_chunk(&mut to, b"0123456789abcdef").unwrap();
        send_chunk(&mut to, b"").unwrap();
        end_chunks(&mut to).unwrap();
        let expected = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n";
        assert_eq!(to, expected.as_bytes());
        assert!(is_field("x-a", "b c") && !is_field("x a", "b") && !is_field("x-a", "b\r\nc: d") && !is_field("", ""));
    }
}

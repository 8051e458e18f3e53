//! The platform's side, on `$PORT`: invocations, and its calls around a snapshot.

use std::io::{self, Write};
use std::sync::mpsc::Receiver;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::exchange::{Event, Exchange, Failure, ResponsePart};
use crate::http::{Head, Request, end_chunks, send_chunk};
use crate::json::Value;
use crate::net::Connection;
use crate::runtime::{INTEGRATION, PAYLOAD_MAX};
use crate::{FunctionIdentity, base64, error_body, payload};

/// Where the emulator, and AWS's own API, take events.
const INVOCATIONS: &str = "/2015-03-31/functions/function/invocations";
const BEFORE_SNAPSHOT: &str = "/.rekindle/before-snapshot";
const AFTER_RESTORE: &str = "/.rekindle/after-restore";
/// Says that the function failed, to the platform and to clients of AWS's API.
const PLATFORM_ERROR: &str = "x-fn-function-error";
const AWS_ERROR: &str = "x-amz-function-error";
const UNHANDLED: &str = "Unhandled";
const JSON: &str = "application/json";
const BINARY: &str = "application/octet-stream";
/// What ends that head.
const PRELUDE_END: [u8; 8] = [0; 8];
const PRELUDE_MAX: usize = 1 << 20;

/// How an event came, and so how its answer goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestKind {
    /// An HTTP request, which the event describes.
    Http,
    /// The body is the event, by the platform's API.
    Event,
    /// The body is the event, by AWS's API.
    Aws,
}

/// Serves a call of the platform.
pub(crate) fn serve(
    exchange: &Exchange,
    function: &FunctionIdentity,
    request: &Request,
    connection: &mut Connection,
) -> io::Result<()> {
    let mut body = connection.body(request)?;
    let Some(body) = body.read_all(PAYLOAD_MAX)? else {
        body.skip()?;
        let message = format!("Request must be smaller than {PAYLOAD_MAX} bytes for the InvokeFunction operation");
        let body = error_body("RequestEntityTooLargeException", &message);
        return Head::of_type(413, JSON).send(&mut connection.stream, &body, false);
    };
    match (request.method.as_str(), request.path()) {
        ("POST", BEFORE_SNAPSHOT) => {
            let hooks = u8::from(exchange.awaits_restore());
            let told = format!("{{\"afterRestore\":{{\"hooks\":{hooks},\"reseeds\":[]}}}}");
            Head::of_type(200, JSON).send(&mut connection.stream, told.as_bytes(), false)
        }
        ("POST", AFTER_RESTORE) => {
            let (status, body) = match exchange.restored() {
                Ok(()) => (200, b"{}".to_vec()),
                Err(error) => (500, error),
            };
            Head::of_type(status, JSON).send(&mut connection.stream, &body, false)
        }
        _ => invoke(exchange, function, request, body, &mut connection.stream),
    }
}

fn invoke(
    exchange: &Exchange,
    function: &FunctionIdentity,
    request: &Request,
    body: Vec<u8>,
    to: &mut impl Write,
) -> io::Result<()> {
    let kind = match (
        request.method.as_str(),
        request.path(),
        request.headers.get("x-fn-invocation"),
    ) {
        (_, _, Some("event")) => RequestKind::Event,
        ("POST", INVOCATIONS, _) => RequestKind::Aws,
        _ => RequestKind::Http,
    };
    let event = event(function, request, kind, body);
    let id = event.id.clone();
    let is_head = request.method == "HEAD";
    let parts = match exchange.begin_turn(event) {
        Ok(parts) => parts,
        Err(ended) => return failed(kind, &ended.failure(&id)).send(to, is_head),
    };
    let answered = answer(kind, &parts, to, is_head);
    // What is left of it has no reader. The next event waits until the runtime is through with this one.
    drop(parts);
    exchange.end_turn();
    answered
}

fn event(function: &FunctionIdentity, request: &Request, kind: RequestKind, body: Vec<u8>) -> Event {
    let header = |name: &str| request.headers.get(name).unwrap_or_default();
    // It becomes a part of paths.
    let is_usable = |id: &&str| {
        (1..=128).contains(&id.len())
            && id
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    };
    let id = Some(header("x-request-id")).filter(is_usable);
    let id = id.map_or_else(crate::uuid, str::to_owned);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let deadline = now + Duration::from_secs(function.timeout_s);
    let deadline_ms = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
    let trace = match header("x-amzn-trace-id") {
        "" => trace(header("traceparent")),
        given => given.to_owned(),
    };
    let mut headers = Vec::new();
    if let Some(context) = base64::decode(header("x-amz-client-context")).filter(|context| !context.is_empty()) {
        let context = String::from_utf8_lossy(&context).replace(['\r', '\n'], " ");
        headers.push(("Lambda-Runtime-Client-Context", context));
    }
    for (from, to) in [
        ("x-amz-cognito-identity", "Lambda-Runtime-Cognito-Identity"),
        ("x-amz-tenant-id", "Lambda-Runtime-Aws-Tenant-Id"),
    ] {
        if !header(from).is_empty() {
            headers.push((to, header(from).to_owned()));
        }
    }
    let body = match kind {
        RequestKind::Http => payload::event(function, request, &id, &body).to_string().into_bytes(),
        // An invocation without a payload is one with an empty object, as on Lambda.
        RequestKind::Event if body.trim_ascii().is_empty() => b"{}".to_vec(),
        RequestKind::Event | RequestKind::Aws => body,
    };
    Event {
        id,
        deadline_ms: header("x-fn-deadline-ms").parse().unwrap_or(deadline_ms),
        trace,
        headers,
        content_type: JSON.to_owned(),
        body,
    }
}

/// A W3C `traceparent` as X-Ray writes it; empty if there is none.
fn trace(parent: &str) -> String {
    let words: Vec<&str> = parent.split('-').collect();
    match words.as_slice() {
        [_, id, span, flags, ..] if id.len() == 32 && id.is_ascii() => {
            let sampled = u8::from(flags.ends_with(['1', '3', '5', '7', '9', 'b', 'd', 'f']));
            format!("Root=1-{}-{};Parent={span};Sampled={sampled}", &id[..8], &id[8..])
        }
        _ => String::new(),
    }
}

struct BufferedResponse {
    head: Head,
    body: Vec<u8>,
}

impl BufferedResponse {
    fn send(&self, to: &mut impl Write, is_head: bool) -> io::Result<()> {
        self.head.send(to, &self.body, is_head)
    }
}

/// The response to an invocation that failed.
fn failed(kind: RequestKind, failure: &Failure) -> BufferedResponse {
    let head = match kind {
        RequestKind::Http | RequestKind::Event => Head::new(500).with(PLATFORM_ERROR, UNHANDLED),
        RequestKind::Aws if failure.is_function_s => Head::new(200).with(AWS_ERROR, UNHANDLED),
        RequestKind::Aws => Head::new(502).with(AWS_ERROR, UNHANDLED),
    };
    BufferedResponse {
        head: head.with("content-type", failure.content_type.clone()),
        body: failure.body.clone(),
    }
}

fn broken() -> Failure {
    Failure {
        is_function_s: false,
        content_type: JSON.to_owned(),
        body: error_body("Runtime.Unknown", "the runtime gave no answer"),
    }
}

/// Passes an answer on. An error ends the connection, so that the client sees an answer that is cut off.
fn answer(kind: RequestKind, parts: &Receiver<ResponsePart>, to: &mut impl Write, is_head: bool) -> io::Result<()> {
    match parts.recv() {
        Ok(ResponsePart::Begin {
            is_streamed: false,
            content_type,
        }) => {
            let whole = match (kind, rest(parts)) {
                (_, Err(failure)) => failed(kind, &failure),
                (RequestKind::Event | RequestKind::Aws, Ok(body)) => BufferedResponse {
                    head: Head::of_type(200, &content_type),
                    body,
                },
                (RequestKind::Http, Ok(body)) => match payload::response(&body) {
                    Ok((head, body)) => BufferedResponse { head, body },
                    Err(why) => invalid(&why),
                },
            };
            whole.send(to, is_head)
        }
        Ok(ResponsePart::Begin { content_type, .. }) if content_type == INTEGRATION && kind == RequestKind::Http => {
            integrated(parts, to, is_head)
        }
        Ok(ResponsePart::Begin { content_type, .. }) => {
            let content_type = if kind == RequestKind::Http {
                BINARY
            } else {
                &content_type
            };
            streamed(&Head::of_type(200, content_type), &[], parts, to, is_head)
        }
        Ok(ResponsePart::Failed(failure)) => failed(kind, &failure).send(to, is_head),
        Ok(ResponsePart::Bytes(_) | ResponsePart::End) | Err(_) => failed(kind, &broken()).send(to, is_head),
    }
}

fn invalid(why: &str) -> BufferedResponse {
    eprintln!("the function's answer is no HTTP response: {why}");
    let failure = Failure {
        is_function_s: true,
        content_type: JSON.to_owned(),
        body: error_body("Runtime.InvalidResponse", why),
    };
    failed(RequestKind::Http, &failure)
}

fn rest(parts: &Receiver<ResponsePart>) -> Result<Vec<u8>, Failure> {
    let mut whole = Vec::new();
    loop {
        match parts.recv() {
            Ok(ResponsePart::Bytes(bytes)) if whole.is_empty() => whole = bytes,
            Ok(ResponsePart::Bytes(bytes)) => whole.extend_from_slice(&bytes),
            Ok(ResponsePart::End) => return Ok(whole),
            Ok(ResponsePart::Failed(failure)) => return Err(failure),
            Ok(ResponsePart::Begin { .. }) | Err(_) => return Err(broken()),
        }
    }
}

/// A stream whose response begins with a head of its own.
fn integrated(parts: &Receiver<ResponsePart>, to: &mut impl Write, is_head: bool) -> io::Result<()> {
    let mut read = Vec::new();
    let end = loop {
        if let Some(end) = read.windows(PRELUDE_END.len()).position(|bytes| bytes == PRELUDE_END) {
            break end;
        }
        match parts.recv() {
            Ok(ResponsePart::Bytes(bytes)) if read.len() < PRELUDE_MAX => read.extend_from_slice(&bytes),
            Ok(ResponsePart::Failed(failure)) => return failed(RequestKind::Http, &failure).send(to, is_head),
            Ok(_) => return invalid("the stream has no head").send(to, is_head),
            Err(_) => return failed(RequestKind::Http, &broken()).send(to, is_head),
        }
    };
    let head = Value::parse(&read[..end]).ok_or_else(|| "the head of the stream is not JSON".to_owned());
    match head.and_then(|head| payload::head(&head)) {
        Ok(head) => streamed(
            &payload::typed(head, BINARY),
            &read[end + PRELUDE_END.len()..],
            parts,
            to,
            is_head,
        ),
        Err(why) => invalid(&why).send(to, is_head),
    }
}

fn streamed(
    head: &Head,
    first: &[u8],
    parts: &Receiver<ResponsePart>,
    to: &mut impl Write,
    is_head: bool,
) -> io::Result<()> {
    let has_body = !is_head && head.may_have_body();
    if head.may_have_body() {
        head.begin(to)?;
    } else {
        head.send(to, &[], true)?;
    }
    let mut write = |bytes: &[u8]| if has_body { send_chunk(to, bytes) } else { Ok(()) };
    write(first)?;
    loop {
        match parts.recv() {
            Ok(ResponsePart::Bytes(bytes)) => write(&bytes)?,
            Ok(ResponsePart::End) if has_body => return end_chunks(to),
            Ok(ResponsePart::End) => return Ok(()),
            Ok(ResponsePart::Failed(failure)) => {
                eprintln!(
                    "the function failed within its answer: {}",
                    String::from_utf8_lossy(&failure.body)
                );
                return Err(io::Error::other("the function failed within its answer"));
            }
            Ok(ResponsePart::Begin { .. }) | Err(_) => return Err(io::Error::other("the answer has no end")),
        }
    }
}

#[cfg(test)]
mod tests;

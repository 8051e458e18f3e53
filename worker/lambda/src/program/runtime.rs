//! The runtime API, 2018-06-01, on `AWS_LAMBDA_RUNTIME_API`. Statuses and errors are the emulator's.

use std::io::{self, Read};
use std::sync::mpsc::SyncSender;

use crate::exchange::{Event, Exchange, Failure, Refusal, ResponsePart};
use crate::http::{Head, Headers, Request};
use crate::json::Value;
use crate::net::Connection;
use crate::{FunctionIdentity, accepted, base64, error_body, extensions};

/// Maximum size of a buffered answer or of an error, in bytes: 6 MiB and 100 bytes.
pub(crate) const PAYLOAD_MAX: usize = (6 << 20) + 100;
/// Bytes of a streamed answer that are passed on at once.
const PIECE: usize = 32 << 10;

const JSON: &str = "application/json";
const MODE: &str = "lambda-runtime-function-response-mode";
const ERROR_TYPE: &str = "lambda-runtime-function-error-type";
const ERROR_BODY: &str = "lambda-runtime-function-error-body";
/// A stream that begins with the head of its HTTP response.
pub(crate) const INTEGRATION: &str = "application/vnd.awslambda.http-integration-response";
/// An error with its causes, which are for traces.
const WITH_CAUSE: &str = "application/vnd.aws.lambda.error.cause+json";

type Reply = (Head, Vec<u8>);

/// Serves a call on the address of the runtime API.
pub(crate) fn serve(
    exchange: &Exchange,
    function: &FunctionIdentity,
    request: &Request,
    connection: &mut Connection,
) -> io::Result<()> {
    let path = request.path().to_owned();
    if let Some(path) = path
        .strip_prefix("/2020-01-01")
        .filter(|path| path.starts_with("/extension/"))
    {
        return extensions::serve(exchange, function, request, path, connection);
    }
    if request.method == "GET" {
        connection.body(request)?.skip()?;
    }
    let words: Vec<&str> = path.split('/').skip(1).collect();
    let (head, body) = match (request.method.as_str(), words.as_slice()) {
        ("GET", ["2018-06-01", "runtime", "invocation", "next"]) => match exchange.next() {
            Ok(event) => return send_event(function, &event, connection),
            Err(refusal) => refused(refusal),
        },
        ("GET", ["2018-06-01", "runtime", "restore", "next"]) => match exchange.restore_next() {
            Ok(()) => (Head::new(200), Vec::new()),
            Err(refusal) => refused(refusal),
        },
        ("POST", ["2018-06-01", "runtime", "invocation", id, "response"]) => {
            respond(exchange, request, id, connection)?
        }
        ("POST", ["2018-06-01", "runtime", "invocation", id, "error"]) => fail(exchange, request, id, connection)?,
        ("POST", ["2018-06-01", "runtime", "init", "error"]) => {
            let body = whole_body(request, connection)?;
            eprintln!(
                "the function could not be initialised: {}",
                String::from_utf8_lossy(&body)
            );
            exchange.init_error().map_or_else(refused, |()| accepted())
        }
        ("POST", ["2018-06-01", "runtime", "restore", "error"]) => {
            let body = whole_body(request, connection)?;
            eprintln!(
                "the function failed after its restore: {}",
                String::from_utf8_lossy(&body)
            );
            exchange.restore_error(body).map_or_else(refused, |()| accepted())
        }
        ("GET", ["2018-06-01", "ping"]) => (Head::new(200), b"pong".to_vec()),
        ("PUT", ["2020-08-15", "logs"]) => {
            connection.body(request)?.skip()?;
            unsupported("Logs")
        }
        ("PUT", ["2022-07-01", "telemetry"]) => {
            connection.body(request)?.skip()?;
            unsupported("Telemetry")
        }
        _ => {
            connection.body(request)?.skip()?;
            not_found()
        }
    };
    head.send(&mut connection.stream, &body, request.method == "HEAD")
}

pub(crate) fn not_found() -> Reply {
    let head = Head::of_type(404, "text/plain; charset=utf-8");
    (head, b"404 page not found\n".to_vec())
}

/// Says, as the emulator does, that logs are not delivered. Extensions go on without.
fn unsupported(what: &str) -> Reply {
    let body = error_body(&format!("{what}.NotSupported"), &format!("{what} API is not supported"));
    (Head::of_type(202, JSON), body)
}

fn refused(refusal: Refusal) -> Reply {
    let (status, kind, message) = match refusal {
        Refusal::InvalidRequestId => (400, "InvalidRequestID", "Invalid request ID".to_owned()),
        Refusal::InvalidState(message) => (403, "InvalidStateTransition", message),
    };
    (Head::of_type(status, JSON), error_body(kind, &message))
}

fn whole_body(request: &Request, connection: &mut Connection) -> io::Result<Vec<u8>> {
    let mut body = connection.body(request)?;
    let whole = body.read_all(PAYLOAD_MAX)?;
    body.skip()?;
    Ok(whole.unwrap_or_default())
}

fn send_event(function: &FunctionIdentity, event: &Event, connection: &mut Connection) -> io::Result<()> {
    let mut head = Head::of_type(200, &event.content_type)
        .with("Lambda-Runtime-Aws-Request-Id", event.id.clone())
        .with("Lambda-Runtime-Deadline-Ms", event.deadline_ms.to_string())
        .with("Lambda-Runtime-Invoked-Function-Arn", function.arn.clone());
    if !event.trace.is_empty() {
        head = head.with("Lambda-Runtime-Trace-Id", event.trace.clone());
    }
    for (name, value) in &event.headers {
        head = head.with(name, value.clone());
    }
    head.send(&mut connection.stream, &event.body, false)
}

fn content_type(request: &Request) -> String {
    request.headers.get("content-type").unwrap_or(JSON).to_owned()
}

fn respond(exchange: &Exchange, request: &Request, id: &str, connection: &mut Connection) -> io::Result<Reply> {
    let to = match exchange.respond(id, "InvocationResponse") {
        Ok(to) => to,
        Err(refusal) => {
            connection.body(request)?.skip()?;
            return Ok(refused(refusal));
        }
    };
    let mode = request.headers.get(MODE).unwrap_or_default();
    let answered = match mode {
        // AWS's Go library tells of no mode: there, only the caller decides.
        "" if content_type(request) == INTEGRATION => respond_streamed(&to, request, connection),
        "" => respond_buffered(&to, request, connection),
        "streaming" => respond_streamed(&to, request, connection),
        _ => {
            let _gone = to.send(ResponsePart::Failed(failure("Runtime.InvalidResponseModeHeader", "")));
            connection.body(request)?.skip()?;
            let body = error_body("InvalidFunctionResponseMode", "Invalid function response mode");
            Ok((Head::of_type(400, JSON), body))
        }
    };
    if let Err(error) = &answered {
        let message = format!("the runtime broke its answer off: {error}");
        let _gone = to.send(ResponsePart::Failed(failure("Runtime.TruncatedResponse", &message)));
        exchange.responded();
        // The client may have closed only its side. The error closes the other.
        let body = error_body("TruncatedHTTPRequest", "HTTP request detected as truncated");
        let _closed = Head::of_type(400, JSON).send(&mut connection.stream, &body, false);
    } else {
        exchange.responded();
    }
    answered
}

fn respond_buffered(
    to: &SyncSender<ResponsePart>,
    request: &Request,
    connection: &mut Connection,
) -> io::Result<Reply> {
    let mut body = connection.body(request)?;
    let Some(bytes) = body.read_all(PAYLOAD_MAX)? else {
        let of = format!("maximum allowed payload size ({PAYLOAD_MAX} bytes).");
        let message = format!("Response payload size exceeded {of}");
        let _gone = to.send(ResponsePart::Failed(failure("Function.ResponseSizeTooLarge", &message)));
        body.skip()?;
        let body = error_body("RequestEntityTooLarge", &format!("Exceeded {of}"));
        return Ok((Head::of_type(413, JSON), body));
    };
    let begin = ResponsePart::Begin {
        is_streamed: false,
        content_type: content_type(request),
    };
    // If nobody waits for the answer any more, the runtime goes on all the same.
    let _gone = [begin, ResponsePart::Bytes(bytes), last(&body.trailers)]
        .into_iter()
        .try_for_each(|part| to.send(part));
    Ok(accepted())
}

fn respond_streamed(
    to: &SyncSender<ResponsePart>,
    request: &Request,
    connection: &mut Connection,
) -> io::Result<Reply> {
    let begin = ResponsePart::Begin {
        is_streamed: true,
        content_type: content_type(request),
    };
    let mut is_heard = to.send(begin).is_ok();
    let mut body = connection.body(request)?;
    let mut piece = vec![0; PIECE];
    loop {
        let read = body.read(&mut piece)?;
        if read == 0 {
            break;
        }
        is_heard = is_heard && to.send(ResponsePart::Bytes(piece[..read].to_vec())).is_ok();
    }
    let _gone = to.send(last(&body.trailers));
    Ok(accepted())
}

/// The end of an answer, or the error that its trailers report.
fn last(trailers: &Headers) -> ResponsePart {
    let Some(kind) = trailers.get(ERROR_TYPE).filter(|kind| !kind.is_empty()) else {
        return ResponsePart::End;
    };
    let told = trailers.get(ERROR_BODY).and_then(base64::decode);
    ResponsePart::Failed(Failure {
        is_function_s: true,
        content_type: JSON.to_owned(),
        body: told.unwrap_or_else(|| error_body(kind, "")),
    })
}

fn failure(kind: &str, message: &str) -> Failure {
    Failure {
        is_function_s: true,
        content_type: JSON.to_owned(),
        body: error_body(kind, message),
    }
}

fn fail(exchange: &Exchange, request: &Request, id: &str, connection: &mut Connection) -> io::Result<Reply> {
    let body = whole_body(request, connection)?;
    let to = match exchange.respond(id, "InvocationErrorResponse") {
        Ok(to) => to,
        Err(refusal) => return Ok(refused(refusal)),
    };
    let mut told = Failure {
        is_function_s: true,
        content_type: content_type(request),
        body,
    };
    if told.content_type == WITH_CAUSE {
        told.content_type = JSON.to_owned();
        told.body = without_cause(&told.body);
    }
    let _gone = to.send(ResponsePart::Failed(told));
    exchange.responded();
    Ok(accepted())
}

fn without_cause(body: &[u8]) -> Vec<u8> {
    let Some(error) = Value::parse(body) else {
        return b"\"Invalid error body\"".to_vec();
    };
    let text = |name| Value::text(error.get(name).and_then(Value::as_str).unwrap_or_default());
    let mut told = vec![
        ("errorMessage".to_owned(), text("errorMessage")),
        ("errorType".to_owned(), text("errorType")),
    ];
    if let Some(trace) = error.get("stackTrace") {
        told.push(("stackTrace".to_owned(), trace.clone()));
    }
    Value::Object(told).to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_ends_with_the_error_in_its_trailers() {
        let trailers = |fields: &[(&str, &str)]| {
            let owned = fields
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            Headers(owned.collect())
        };
        assert_eq!(last(&trailers(&[])), ResponsePart::End);
        assert_eq!(
            last(&trailers(&[(ERROR_TYPE, ""), (ERROR_BODY, "e30=")])),
            ResponsePart::End
        );
        for (told, body) in [("e30=", "{}"), ("*", r#"{"errorMessage":"","errorType":"E"}"#)] {
            let ResponsePart::Failed(failure) = last(&trailers(&[(ERROR_TYPE, "E"), (ERROR_BODY, told)])) else {
                panic!("{told} is no error");
            };
            assert_eq!((failure.is_function_s, failure.body), (true, body.into()));
        }
    }
}

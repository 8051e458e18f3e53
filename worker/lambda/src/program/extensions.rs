//! The extensions API, 2020-01-01: programs of `/opt/extensions`, and extensions within the runtime's process.

use std::io;

use crate::exchange::{Exchange, State};
use crate::http::{Head, Request};
use crate::json::Value;
use crate::net::Connection;
use crate::{FunctionIdentity, accepted, error_body, runtime};

const EXTENSIONS_MAX: usize = 10;
const BODY_MAX: usize = 1 << 20;
const ID: &str = "lambda-extension-identifier";
const ERROR_TYPE: &str = "lambda-extension-function-error-type";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Started,
    Registered,
    /// It waits for an event.
    Ready,
    Running,
    Failed,
}

impl Stage {
    fn name(self) -> &'static str {
        match self {
            Self::Started => "Started",
            Self::Registered => "Registered",
            Self::Ready => "Ready",
            Self::Running => "Running",
            Self::Failed => "InitError",
        }
    }
}

#[derive(Debug)]
pub(crate) struct Extension {
    pub(crate) id: String,
    /// The name of its file, or what it calls itself.
    pub(crate) name: String,
    pub(crate) stage: Stage,
    wants_invocations: bool,
    /// The last turn of which it was told.
    seen: u64,
}

impl Extension {
    pub(crate) fn started(name: &str) -> Self {
        Self {
            id: crate::uuid(),
            name: name.to_owned(),
            stage: Stage::Started,
            wants_invocations: false,
            seen: 0,
        }
    }
}

/// Whether all extensions wait for an event, and have been told of those of all `turns`.
pub(crate) fn all_ready(extensions: &[Extension], turns: u64) -> bool {
    let is_told = |extension: &Extension| !extension.wants_invocations || extension.seen == turns;
    extensions
        .iter()
        .all(|extension| extension.stage == Stage::Ready && is_told(extension))
}

/// Serves a call of the extensions API, whose path is below its version.
pub(crate) fn serve(
    exchange: &Exchange,
    function: &FunctionIdentity,
    request: &Request,
    path: &str,
    connection: &mut Connection,
) -> io::Result<()> {
    let body = connection.body(request)?.read_all(BODY_MAX)?.unwrap_or_default();
    let (head, body) = match (request.method.as_str(), path) {
        ("POST", "/extension/register") => register(exchange, function, request, &body),
        ("GET", "/extension/event/next") => identified(request, |id| next(exchange, function, id)),
        ("POST", "/extension/init/error" | "/extension/exit/error") => identified(request, |id| {
            let kind = request.headers.get(ERROR_TYPE).filter(|kind| !kind.is_empty());
            let kind = kind.ok_or_else(|| {
                refusal(
                    "Extension.MissingHeader",
                    "Lambda-Extension-Function-Error-Type not found",
                )
            })?;
            failed(exchange, id, kind, &body)
        }),
        _ => Ok(runtime::not_found()),
    }
    .unwrap_or_else(|refused| refused);
    head.send(&mut connection.stream, &body, false)
}

type Reply = Result<(Head, Vec<u8>), (Head, Vec<u8>)>;

fn refusal(kind: &str, message: &str) -> (Head, Vec<u8>) {
    (Head::of_type(403, "application/json"), error_body(kind, message))
}

fn identified(request: &Request, call: impl FnOnce(&str) -> Reply) -> Reply {
    match request.headers.get(ID) {
        None | Some("") => Err(refusal(
            "Extension.MissingExtensionIdentifier",
            "Missing Lambda-Extension-Identifier header",
        )),
        Some(id) if id.len() != 36 => Err(refusal(
            "Extension.InvalidExtensionIdentifier",
            "Invalid Lambda-Extension-Identifier",
        )),
        Some(id) => call(id),
    }
}

fn register(exchange: &Exchange, function: &FunctionIdentity, request: &Request, body: &[u8]) -> Reply {
    let name = request.headers.get("lambda-extension-name").unwrap_or_default();
    if name.is_empty() {
        return Err(refusal("Extension.InvalidExtensionName", "Empty extension name"));
    }
    let Some(order) = Value::parse(body) else {
        return Err(refusal("InvalidRequestFormat", "the body is not JSON"));
    };
    let events: Vec<_> = match order.get("events") {
        Some(Value::List(events)) => events.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let mut state = exchange.lock();
    let at = state.extensions.iter().position(|known| known.name == name);
    let allowed: &[&str] = match at {
        Some(_) => &["INVOKE", "SHUTDOWN"],
        None => &["INVOKE"],
    };
    if let Some(wrong) = events.iter().find(|event| !allowed.contains(event)) {
        let why = match *wrong {
            "SHUTDOWN" => "ShutdownEventNotSupportedForInternalExtension",
            _ => "InvalidEventType",
        };
        let message = format!("{wrong}: {why}");
        return Err(refusal("Extension.InvalidEventType", &message));
    }
    let at = match at {
        Some(at) => at,
        None if state.is_initialised() => {
            let message = "Extension registration closed already";
            return Err(refusal("Extension.RegistrationClosed", message));
        }
        None if state.extensions.len() >= EXTENSIONS_MAX => {
            let message = format!("Extension limit ({EXTENSIONS_MAX}) reached");
            return Err(refusal("Extension.TooManyExtensions", &message));
        }
        None => {
            state.extensions.push(Extension::started(name));
            state.extensions.len() - 1
        }
    };
    let extension = &mut state.extensions[at];
    if extension.stage != Stage::Started {
        return Err(invalid(extension, "Registered"));
    }
    extension.stage = Stage::Registered;
    extension.wants_invocations = events.contains(&"INVOKE");
    let head = Head::of_type(200, "application/json").with("Lambda-Extension-Identifier", extension.id.clone());
    exchange.notify();
    let mut answer = vec![
        ("functionName".to_owned(), Value::text(&function.name)),
        ("functionVersion".to_owned(), Value::text(&function.version)),
        ("handler".to_owned(), Value::text(&function.handler)),
    ];
    let features = request
        .headers
        .get("lambda-extension-accept-feature")
        .unwrap_or_default();
    if features.split(',').any(|feature| feature.trim() == "accountId") {
        answer.push(("accountId".to_owned(), Value::text(crate::ACCOUNT)));
    }
    Ok((head, Value::Object(answer).to_string().into_bytes()))
}

fn invalid(extension: &Extension, to: &str) -> (Head, Vec<u8>) {
    let message = format!(
        "State transition from {} to {to} failed for extension {}. Error: State transition is not allowed",
        extension.stage.name(),
        extension.name
    );
    refusal("Extension.InvalidExtensionState", &message)
}

fn find<'a>(state: &'a mut State, id: &str) -> Result<&'a mut Extension, (Head, Vec<u8>)> {
    let known = state.extensions.iter_mut().find(|extension| extension.id == id);
    known.ok_or_else(|| {
        refusal(
            "Extension.UnknownExtensionIdentifier",
            &format!("Unknown extension {id}"),
        )
    })
}

/// Waits for the next event of an extension.
fn next(exchange: &Exchange, function: &FunctionIdentity, id: &str) -> Reply {
    let mut state = exchange.lock();
    let extension = find(&mut state, id)?;
    if matches!(extension.stage, Stage::Started | Stage::Failed) {
        return Err(invalid(extension, "Ready"));
    }
    extension.stage = Stage::Ready;
    exchange.notify();
    loop {
        let extension = find(&mut state, id)?;
        let seen = if extension.wants_invocations {
            extension.seen
        } else {
            u64::MAX
        };
        if let Some((event, turn)) = state.event_after(seen) {
            let extension = find(&mut state, id)?;
            (extension.stage, extension.seen) = (Stage::Running, turn);
            let mut told = vec![
                ("eventType".to_owned(), Value::text("INVOKE")),
                ("deadlineMs".to_owned(), Value::Number(event.deadline_ms.to_string())),
                ("requestId".to_owned(), Value::text(&event.id)),
                ("invokedFunctionArn".to_owned(), Value::text(&function.arn)),
            ];
            if !event.trace.is_empty() {
                let tracing = [
                    ("type", Value::text("X-Amzn-Trace-Id")),
                    ("value", Value::text(&event.trace)),
                ];
                told.push(("tracing".to_owned(), Value::object(tracing)));
            }
            let head = Head::of_type(200, "application/json");
            let head = head.with("Lambda-Extension-Event-Identifier", crate::uuid());
            return Ok((head, Value::Object(told).to_string().into_bytes()));
        }
        state = exchange.wait(state);
    }
}

/// An extension says that it cannot go on. It ends then, and everything with it.
fn failed(exchange: &Exchange, id: &str, kind: &str, body: &[u8]) -> Reply {
    let mut state = exchange.lock();
    let extension = find(&mut state, id)?;
    eprintln!(
        "extension {}: {kind}: {}",
        extension.name,
        String::from_utf8_lossy(body)
    );
    extension.stage = Stage::Failed;
    Ok(accepted())
}

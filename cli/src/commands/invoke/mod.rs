//! `fn invoke`: one invocation. The response's body goes to standard output as it comes, the summary to standard error.
//! With `--json` everything goes to standard output at the end.

mod cloud_event;
mod json;

use std::io::{self, IsTerminal as _, Read as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use std::{fs, str};

use anyhow::{Context as _, Result, bail};
use rekindle_wire::interface::Endpoint as _;
use rekindle_wire::interface::users::Invoke;
use rekindle_wire::{ApiError, headers};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Response, StatusCode};

use crate::args::InvokeArgs;
use crate::client::Client;
use crate::out;
use crate::show::{self, Tone};

/// The platform's errors are a line of JSON.
const ERROR_MAX: u64 = 64 << 10;

/// Calls the function. Exit code 1 if the platform or the function answers with an error.
pub(crate) async fn run(client: &Client, args: &InvokeArgs) -> Result<ExitCode> {
    let mut headers = header_map(args)?;
    let mut body = args.data.as_deref().map(body).transpose()?;
    if let Some(kind) = &args.cloudevent {
        let event = cloud_event::CloudEvent::new(kind, &args.source, body);
        body = Some(match args.structured {
            true => event.structured(&mut headers)?,
            false => event.binary(&mut headers)?,
        });
    }
    let method = match &args.method {
        Some(method) => Method::from_bytes(method.to_uppercase().as_bytes())
            .with_context(|| format!("\"{method}\" is not an HTTP method"))?,
        None if args.event || body.is_some() => Method::POST,
        None => Method::GET,
    };
    let (function, below) = (
        client.function_id(&args.name.function),
        args.path.trim_start_matches('/'),
    );
    let selected = args
        .name
        .selector
        .as_ref()
        .map_or_else(String::new, |s| format!("@{s}"));
    if !selected.is_empty() && (args.event || args.asynchronous) {
        bail!("events and asynchronous invocations go to what is live: leave out {selected}, --event and --async");
    }
    let path = match (args.event, args.asynchronous) {
        (true, later) => {
            let (name, namespace) = function.split();
            format!("{}?async={later}", Invoke { name, namespace }.uri())
        }
        (false, true) => format!("/async-function/{function}/{below}"),
        (false, false) => format!("/function/{function}{selected}/{below}"),
    };
    // The gateway looks at the key and keeps it: no function learns it. A header of the command line goes before it.
    let request = client.request(method, &path);
    let mut request = request.headers(headers).timeout(Duration::from_secs(args.wait));
    if args.event && !args.headers.iter().any(|(n, _)| n.eq_ignore_ascii_case("content-type")) {
        request = request.header("content-type", "application/json");
    }
    // Without a body an event is `{}` (docs/reference/runtime-contract.md).
    if let Some(body) = body {
        request = request.body(body);
    }
    let started = Instant::now();
    let response = client.send(request).await?;
    if args.asynchronous {
        let call = accepted(client, response).await?;
        match args.json {
            true => show::print_json(&call)?,
            false => say!("{}", call.id),
        }
        if call.known && !args.quiet {
            eprintln!(
                "{}",
                show::tinted_err("accepted earlier, with the same idempotency key", Tone::Faint)
            );
        }
        return Ok(ExitCode::SUCCESS);
    }
    let head = Head::of(&response);
    let failed = head.status.is_client_error() || head.status.is_server_error();
    let code = if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    if args.json {
        say!("{}", as_json(head, response, started).await?);
        return Ok(code);
    }
    let shown = if args.include {
        head_text(&response)
    } else {
        String::new()
    };
    let response = match platform_error(response).await? {
        InvokeOutcome::Platform(error) => return Err(error.into()),
        InvokeOutcome::Function(response) => response,
    };
    out::text(&shown);
    copy(response).await?;
    if !args.quiet {
        eprintln!("{}", show::tinted_err(&head.line(started.elapsed()), Tone::Faint));
    }
    Ok(code)
}

async fn as_json(head: Head, response: Response, started: Instant) -> Result<String> {
    let begun = json::ResponseHead::of(head, &response);
    match platform_error(response).await? {
        InvokeOutcome::Platform(error) => begun.failed(error, started.elapsed()),
        InvokeOutcome::Function(response) => {
            let body = response.bytes().await.context("the response ended early")?;
            begun.answered(body.to_vec(), started.elapsed())
        }
    }
}

/// The body that `-d` names: text, `@file`, or `-`.
fn body(data: &str) -> Result<Vec<u8>> {
    if data == "-" {
        let mut bytes = Vec::new();
        io::stdin()
            .lock()
            .read_to_end(&mut bytes)
            .context("standard input cannot be read")?;
        return Ok(bytes);
    }
    match data.strip_prefix('@') {
        Some(file) => fs::read(file).with_context(|| format!("{file}: the body cannot be read")),
        None => Ok(data.as_bytes().to_vec()),
    }
}

fn header_map(args: &InvokeArgs) -> Result<HeaderMap> {
    let mut map = HeaderMap::new();
    for (name, value) in &args.headers {
        let name: HeaderName = name
            .parse()
            .with_context(|| format!("\"{name}\" is not a header's name"))?;
        let value = HeaderValue::from_str(value).with_context(|| format!("{name}: the value cannot be sent"))?;
        map.append(name, value);
    }
    let text = [
        (headers::IDEMPOTENCY_KEY, &args.idempotency_key),
        (headers::CALLBACK_URL, &args.callback),
    ];
    for (name, value) in text {
        if let Some(value) = value {
            let value = HeaderValue::from_str(value).with_context(|| format!("{name}: the value cannot be sent"))?;
            map.insert(name, value);
        }
    }
    if let Some(start) = args.start {
        map.insert(headers::FORCE_START, HeaderValue::from_static(start.as_str()));
    }
    Ok(map)
}

fn head_text(response: &Response) -> String {
    let mut text = format!("{:?} {}\n", response.version(), response.status());
    for (name, value) in response.headers() {
        text.push_str(&format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes())));
    }
    text + "\n"
}

/// Who answered.
pub(crate) enum InvokeOutcome {
    /// The function; its body is not read yet.
    Function(Response),
    /// The platform, with an error.
    Platform(ApiError),
}

/// Distinguishes an error of the platform from one of the function: the platform's is JSON with a code of ours and the
/// request's own id.
pub(crate) async fn platform_error(response: Response) -> Result<InvokeOutcome> {
    let is_json = response
        .headers()
        .get("content-type")
        .is_some_and(|v| v.as_bytes().starts_with(b"application/json"));
    let length = response.content_length().unwrap_or(u64::MAX);
    if response.status().is_success() || !is_json || length > ERROR_MAX {
        return Ok(InvokeOutcome::Function(response));
    }
    let (parts, body) = http::Response::from(response).into_parts();
    let bytes = http_body_util::BodyExt::collect(body)
        .await
        .context("the response ended early")?
        .to_bytes();
    let id = parts.headers.get(headers::REQUEST_ID).and_then(|v| v.to_str().ok());
    match serde_json::from_slice::<ApiError>(&bytes) {
        Ok(error) if error.request_id.as_deref() == id => Ok(InvokeOutcome::Platform(error)),
        _ => Ok(InvokeOutcome::Function(http::Response::from_parts(parts, bytes).into())),
    }
}

/// The id that a 202 names.
async fn accepted(client: &Client, response: reqwest::Response) -> Result<rekindle_wire::asynchronous::AcceptedCall> {
    let response = client.checked(response).await?;
    response
        .json()
        .await
        .context("the answer is not what this version of fn understands")
}

/// Copies the body to standard output piece by piece, and ends the last line on a terminal.
pub(super) async fn copy(mut response: Response) -> Result<()> {
    let mut last = b'\n';
    loop {
        match response.chunk().await {
            Ok(Some(part)) => {
                last = part.last().copied().unwrap_or(last);
                out::bytes(&part);
            }
            Ok(None) => break,
            Err(e) => bail!(anyhow::Error::from(e).context("the response ended early")),
        }
    }
    if last != b'\n' && io::stdout().is_terminal() {
        say!();
    }
    Ok(())
}

/// What the response's headers say about the invocation.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    pub(crate) status: StatusCode,
    pub(crate) start: Option<String>,
    pub(crate) instance: Option<String>,
    /// Phases with their milliseconds, from Server-Timing.
    pub(crate) timing: Vec<(String, f64)>,
}

impl Head {
    /// Reads the headers of `response`.
    pub(crate) fn of(response: &Response) -> Self {
        let text = |name: &str| {
            let value = response.headers().get(name)?;
            str::from_utf8(value.as_bytes()).ok().map(str::to_owned)
        };
        Self {
            status: response.status(),
            start: text(headers::START),
            instance: text(headers::INSTANCE),
            timing: text(headers::SERVER_TIMING)
                .map(|t| server_timing(&t))
                .unwrap_or_default(),
        }
    }

    fn line(&self, took: Duration) -> String {
        let mut parts = vec![self.status.as_u16().to_string()];
        parts.extend(self.start.clone());
        parts.push(show::duration(took));
        if !self.timing.is_empty() {
            parts.push(format!("({})", timing_line(&self.timing)));
        }
        parts.extend(self.instance.clone());
        parts.join(" ")
    }
}

pub(crate) fn timing_line(timing: &[(String, f64)]) -> String {
    let parts: Vec<String> = timing
        .iter()
        .map(|(name, ms)| format!("{name} {}", show::millis(*ms)))
        .collect();
    parts.join(", ")
}

/// Parses `route;dur=0.1, place;dur=2` (W3C Server-Timing); entries without a duration are left out.
fn server_timing(text: &str) -> Vec<(String, f64)> {
    text.split(',')
        .filter_map(|entry| {
            let mut parts = entry.split(';').map(str::trim);
            let name = parts.next()?.to_owned();
            let ms = parts.find_map(|p| p.strip_prefix("dur=")?.parse().ok())?;
            Some((name, ms))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(id: &str, body: &'static str) -> Response {
        let response = http::Response::builder()
            .status(502)
            .header("content-type", "application/json")
            .header(headers::REQUEST_ID, id);
        response.body(body).unwrap().into()
    }

    #[tokio::test]
    async fn an_error_is_the_platforms_only_with_the_requests_own_id() {
        let text = r#"{"code":"function_crashed","message":"m","request_id":"r-1"}"#;
        assert!(
            matches!(platform_error(answer("r-1", text)).await.unwrap(), InvokeOutcome::Platform(e) if e.message == "m")
        );
        let InvokeOutcome::Function(response) = platform_error(answer("r-2", text)).await.unwrap() else {
            panic!("a function that sends such JSON itself was taken for the platform");
        };
        assert_eq!(response.text().await.unwrap(), text);
    }

    #[test]
    fn server_timing_is_read_and_entries_without_a_duration_are_left_out() {
        let timing = server_timing("route;dur=0.25, cache, restore;desc=\"x\";dur=12");
        assert_eq!(timing, [("route".to_owned(), 0.25), ("restore".to_owned(), 12.0)]);
    }

    #[test]
    fn a_body_is_text_or_a_file() {
        assert_eq!(body("{}").unwrap(), b"{}");
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("event.json");
        fs::write(&file, "[1]").unwrap();
        assert_eq!(body(&format!("@{}", file.display())).unwrap(), b"[1]");
        assert!(body("@/no/such/file").is_err());
    }
}

//! Requests as events, and answers as responses: Lambda's payload format 2.0, as function URLs have it. The runtimes
//! `python` and `node` do the same.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::http::{Head, Headers, Request, is_field};
use crate::json::Value;
use crate::{FunctionIdentity, base64};

const JSON: &str = "application/json";
/// What the platform adds, or what holds for one connection only.
const HIDDEN: [&str; 9] = [
    "x-fn-invocation",
    "x-fn-deadline-ms",
    "connection",
    "keep-alive",
    "transfer-encoding",
    "te",
    "trailer",
    "upgrade",
    "expect",
];
/// Fields that the server sets.
const FRAMING: [&str; 6] = [
    "content-length",
    "connection",
    "keep-alive",
    "transfer-encoding",
    "trailer",
    "upgrade",
];
const TEXT_TYPES: [&str; 4] = [
    "application/json",
    "application/xml",
    "application/javascript",
    "application/graphql",
];

pub(crate) fn event(function: &FunctionIdentity, request: &Request, id: &str, body: &[u8]) -> Value {
    let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
    let headers = joined(
        request
            .headers
            .0
            .iter()
            .filter(|(name, _)| !HIDDEN.contains(&name.as_str())),
    );
    let header = |name: &str| request.headers.get(name).unwrap_or_default();
    let host = header("host");
    let client = header("x-forwarded-for").split(',').next().unwrap_or_default().trim();
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let http = Value::object([
        ("method", Value::text(&request.method)),
        ("path", Value::text(path)),
        ("protocol", Value::text("HTTP/1.1")),
        (
            "sourceIp",
            Value::text(if client.is_empty() { "127.0.0.1" } else { client }),
        ),
        ("userAgent", Value::text(header("user-agent"))),
    ]);
    let context = Value::object([
        ("accountId", Value::text("anonymous")),
        ("apiId", Value::text(&function.name)),
        ("domainName", Value::text(host)),
        ("domainPrefix", Value::text(host.split('.').next().unwrap_or_default())),
        ("http", http),
        ("requestId", Value::text(id)),
        ("routeKey", Value::text("$default")),
        ("stage", Value::text("$default")),
        ("time", Value::text(common_log_time(since.as_secs()))),
        ("timeEpoch", Value::Number(since.as_millis().to_string())),
    ]);
    let text = as_text(body, &request.headers);
    let mut members = vec![
        ("version", Value::text("2.0")),
        ("routeKey", Value::text("$default")),
        ("rawPath", Value::text(path)),
        ("rawQueryString", Value::text(query)),
        ("headers", headers),
        ("requestContext", context),
        ("isBase64Encoded", Value::Bool(text.is_none())),
    ];
    if request.headers.get("cookie").is_some() {
        let cookies = header("cookie")
            .split(';')
            .map(str::trim)
            .filter(|cookie| !cookie.is_empty());
        members.push(("cookies", Value::List(cookies.map(Value::text).collect())));
    }
    if !query.is_empty() {
        members.push(("queryStringParameters", joined(&parameters(query))));
    }
    if !body.is_empty() {
        members.push(("body", Value::text(text.unwrap_or_else(|| base64::encode(body)))));
    }
    Value::Object(
        members
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
    )
}

/// Pairs as an object. Values of one name are joined by commas.
fn joined<'a>(pairs: impl IntoIterator<Item = &'a (String, String)>) -> Value {
    let mut members: Vec<(String, String)> = Vec::new();
    for (name, value) in pairs {
        match members.iter_mut().find(|(known, _)| known == name) {
            Some((_, before)) => before.extend([",", value]),
            None => members.push((name.clone(), value.clone())),
        }
    }
    Value::Object(
        members
            .into_iter()
            .map(|(name, value)| (name, Value::Text(value)))
            .collect(),
    )
}

fn parameters(query: &str) -> Vec<(String, String)> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs.map(|(name, value)| (decoded(name), decoded(value))).collect()
}

fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut plain, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(byte) = bytes.get(at) {
        let digits = text
            .get(at + 1..at + 3)
            .filter(|digits| digits.bytes().all(|d| d.is_ascii_hexdigit()));
        let escaped = digits
            .filter(|_| *byte == b'%')
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        plain.push(escaped.unwrap_or(if *byte == b'+' { b' ' } else { *byte }));
        at += if escaped.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&plain).into_owned()
}

/// The body as text, where its type says that it is, and it is UTF-8. Forms are binary, as on Lambda.
fn as_text(body: &[u8], headers: &Headers) -> Option<String> {
    let kind = headers.get("content-type").unwrap_or("text/plain");
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_text = kind.starts_with("text/")
        || TEXT_TYPES.contains(&kind.as_str())
        || kind.ends_with("+json")
        || kind.ends_with("+xml");
    let text = std::str::from_utf8(body).ok().filter(|_| is_text || body.is_empty());
    text.map(str::to_owned)
}

/// The response that an answer stands for. The error says why it stands for none.
pub(crate) fn response(answer: &[u8]) -> Result<(Head, Vec<u8>), String> {
    match Value::parse(answer) {
        Some(value) if value.get("statusCode").is_some() => Ok((typed(head(&value)?, JSON), body(&value)?)),
        // What is no JSON goes out as it is.
        _ => Ok((Head::of_type(200, JSON), answer.to_vec())),
    }
}

/// The head of the response that an answer, or the prelude of a stream, describes.
pub(crate) fn head(value: &Value) -> Result<Head, String> {
    let status = match value.get("statusCode") {
        None => "200",
        Some(Value::Number(text) | Value::Text(text)) => text,
        Some(other) => return Err(format!("statusCode {other} is not a number")),
    };
    let number = status
        .trim()
        .parse::<f64>()
        .map_err(|_| format!("statusCode {status} is not a number"))?;
    if !(200.0..600.0).contains(&number) {
        return Err(format!("statusCode {status} is not between 200 and 599"));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is between 200 and 599"
    )]
    let mut head = Head::new(number as u16);
    for key in ["headers", "multiValueHeaders"] {
        let fields = match value.get(key) {
            None | Some(Value::Null) => continue,
            Some(Value::Object(fields)) => fields,
            Some(_) => return Err(format!("{key} is not an object")),
        };
        for (name, values) in fields {
            let values = match values {
                Value::List(values) => values.as_slice(),
                one => std::slice::from_ref(one),
            };
            for value in values {
                add(&mut head, name, value)?;
            }
        }
    }
    if let Some(Value::List(cookies)) = value.get("cookies") {
        for cookie in cookies {
            add(&mut head, "set-cookie", cookie)?;
        }
    }
    Ok(head)
}

fn add(head: &mut Head, name: &str, value: &Value) -> Result<(), String> {
    let value = match value {
        Value::Text(text) => text.clone(),
        Value::Number(_) | Value::Bool(_) => value.to_string(),
        _ => return Err(format!("the header {name} is neither a text nor a number")),
    };
    if !is_field(name, &value) {
        return Err(format!("the header {name:?} has characters that no header may have"));
    }
    let name = name.to_ascii_lowercase();
    if !FRAMING.contains(&name.as_str()) {
        head.headers.push((name, value));
    }
    Ok(())
}

/// Adds a content type, unless there is one.
pub(crate) fn typed(mut head: Head, content_type: &str) -> Head {
    if !head.headers.iter().any(|(name, _)| name == "content-type") {
        head = head.with("content-type", content_type);
    }
    head
}

fn body(value: &Value) -> Result<Vec<u8>, String> {
    let is_encoded = value.get("isBase64Encoded") == Some(&Value::Bool(true));
    match value.get("body") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Text(text)) if is_encoded => {
            base64::decode(text).ok_or_else(|| "isBase64Encoded is set but the body is no base64".to_owned())
        }
        Some(Value::Text(text)) => Ok(text.clone().into_bytes()),
        Some(other) => Ok(other.to_string().into_bytes()),
    }
}

/// A time in seconds since 1970 as web servers log it: `12/Mar/2020:19:03:58 +0000`.
fn common_log_time(seconds: u64) -> String {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    // Howard Hinnant's `civil_from_days`: years begin in March, so that a leap day is a year's last.
    let (days, clock) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let year = era * 400 + year_of_era + u64::from(month >= 10);
    let name = MONTHS[usize::try_from((month + 2) % 12).unwrap_or_default()];
    let (hours, minutes, seconds) = (clock / 3_600, clock / 60 % 60, clock % 60);
    format!("{day:02}/{name}/{year}:{hours:02}:{minutes:02}:{seconds:02} +0000")
}

#[cfg(test)]
mod tests;

//! `[[source]]` in `fn.toml`.

use std::collections::BTreeSet;
use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;

use super::parse_duration;
use super::schedules::{Wrong, refuse};
use crate::event_source::{BATCH_MAX, BATCHES_MAX, DELIVERIES, EventSource, QueueKind, SOURCES_MAX, SourceName};
use crate::ids::FunctionName;

/// Maximum length of an address, a queue, a subject or a name of credentials.
const TEXT_MAX: usize = 500;
/// Longest batch window in milliseconds.
const WINDOW_MAX_MS: u128 = 60_000;
const DELIVERIES_MAX: u32 = 1_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawSource {
    #[serde(rename = "type")]
    kind: Spanned<String>,
    name: Option<Spanned<String>>,
    url: Spanned<String>,
    credentials: Option<Spanned<String>>,
    stream: Option<Spanned<String>>,
    queue: Option<Spanned<String>>,
    consumer: Option<Spanned<String>>,
    subject: Option<Spanned<String>>,
    batch: Option<Spanned<u64>>,
    batch_window: Option<Spanned<String>>,
    concurrency: Option<Spanned<u64>>,
    max_deliveries: Option<Spanned<u64>>,
    dead_letter: Option<Spanned<String>>,
    on_success: Option<Spanned<String>>,
    on_failure: Option<Spanned<String>>,
}

/// The sources, checked.
pub(super) fn checked(all: Vec<RawSource>) -> Result<Vec<EventSource>, Wrong> {
    if let Some(extra) = all.get(SOURCES_MAX) {
        return refuse(
            extra.kind.span(),
            format!("more than {SOURCES_MAX} sources: give some to another function"),
        );
    }
    let are_several = all.len() > 1;
    let mut names = BTreeSet::new();
    let mut checked = Vec::new();
    for raw in all {
        let at = raw.name.as_ref().map_or_else(|| raw.kind.span(), Spanned::span);
        let source = one(raw, are_several)?;
        if !names.insert(source.name.clone()) {
            return refuse(at, format!("two sources are named \"{}\": rename one", source.name));
        }
        checked.push(source);
    }
    Ok(checked)
}

fn one(raw: RawSource, are_several: bool) -> Result<EventSource, Wrong> {
    let name = match &raw.name {
        None if are_several => {
            let message = "each of several sources needs a name: write name = \"orders\" beside type";
            return refuse(raw.kind.span(), message);
        }
        None => SourceName::default(),
        Some(name) => match name.get_ref().parse() {
            Ok(name) => name,
            Err(e) => return refuse(name.span(), format!("{e}")),
        },
    };
    let kind = match raw.kind.get_ref().as_str() {
        "nats" => QueueKind::Nats,
        "sqs" => QueueKind::Sqs,
        other => {
            let message = format!("type = \"{other}\" is not known: use \"nats\" (JetStream) or \"sqs\"");
            return refuse(raw.kind.span(), message);
        }
    };
    let queue = match kind {
        QueueKind::Nats => nats(&raw)?,
        QueueKind::Sqs => sqs(&raw)?,
    };
    url(kind, &raw.url)?;
    for text in [&raw.consumer, &raw.credentials].into_iter().flatten() {
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        if !text.get_ref().chars().all(is_name) {
            let message = format!("\"{}\" is no name: use letters, digits, '-' and '_'", text.get_ref());
            return refuse(text.span(), message);
        }
    }
    if let (Some(deliveries), None, None) = (&raw.max_deliveries, &raw.dead_letter, &raw.on_failure) {
        let message = "max_deliveries needs dead_letter or on_failure, where the message goes then: a message is never \
                       thrown away";
        return refuse(deliveries.span(), message);
    }
    let text = |value: Option<Spanned<String>>| value.map(checked_text).transpose();
    Ok(EventSource {
        name,
        kind,
        url: checked_text(raw.url)?.trim_end_matches('/').to_owned(),
        credentials: text(raw.credentials)?,
        queue,
        consumer: text(raw.consumer)?,
        subject: text(raw.subject)?,
        batch: count("batch", raw.batch, 1, BATCH_MAX)?,
        batch_window_ms: window(raw.batch_window)?,
        concurrency: count("concurrency", raw.concurrency, 1, BATCHES_MAX)?,
        max_deliveries: count("max_deliveries", raw.max_deliveries, DELIVERIES, DELIVERIES_MAX)?,
        dead_letter: text(raw.dead_letter)?,
        on_success: told(raw.on_success)?,
        on_failure: told(raw.on_failure)?,
    })
}

/// A function that is told.
fn told(name: Option<Spanned<String>>) -> Result<Option<FunctionName>, Wrong> {
    let Some(name) = name else { return Ok(None) };
    match name.get_ref().parse() {
        Ok(function) => Ok(Some(function)),
        Err(e) => refuse(
            name.span(),
            format!("{e}; a source's destination is a function of its namespace, whose own [async] may name a URL"),
        ),
    }
}

/// The stream.
fn nats(raw: &RawSource) -> Result<String, Wrong> {
    if let Some(queue) = &raw.queue {
        let message = "queue is SQS's: a source of the type nats has a stream: write stream = \"ORDERS\"";
        return refuse(queue.span(), message);
    }
    match &raw.stream {
        None => refuse(raw.kind.span(), "stream is missing: write stream = \"ORDERS\""),
        Some(stream) => Ok(checked_text(stream.clone())?),
    }
}

/// The queue's path.
fn sqs(raw: &RawSource) -> Result<String, Wrong> {
    let others = [
        ("stream", &raw.stream),
        ("consumer", &raw.consumer),
        ("subject", &raw.subject),
    ];
    for (key, value) in others {
        if let Some(value) = value {
            let message = format!("{key} is NATS's: a source of the type sqs has none: remove the line");
            return refuse(value.span(), message);
        }
    }
    let path = "queue = \"123456789012/orders\", what follows the address in the queue's URL";
    let Some(queue) = &raw.queue else {
        return refuse(raw.kind.span(), format!("queue is missing: write {path}"));
    };
    for queue in [Some(queue), raw.dead_letter.as_ref()].into_iter().flatten() {
        let text = queue.get_ref();
        if text.contains("://") || text.starts_with('/') || !text.contains('/') {
            return refuse(
                queue.span(),
                format!("\"{text}\" is no path of a queue: write as in {path}"),
            );
        }
    }
    checked_text(queue.clone())
}

fn url(kind: QueueKind, url: &Spanned<String>) -> Result<(), Wrong> {
    let (schemes, example): (&[&str], _) = match kind {
        QueueKind::Nats => (&["nats", "tls"], "nats://HOST:4222 or tls://HOST:4222"),
        QueueKind::Sqs => (&["http", "https"], "https://sqs.REGION.amazonaws.com"),
    };
    let text = url.get_ref();
    let parsed = text.split_once("://").filter(|(scheme, _)| schemes.contains(scheme));
    let Some((_, host)) = parsed else {
        return refuse(url.span(), format!("url = \"{text}\" is no address: write {example}"));
    };
    if host.contains('@') {
        let message = "leave the user and the password out of url: the operator has them, and credentials = \"NAME\" \
                       names them";
        return refuse(url.span(), message);
    }
    if host.trim_end_matches('/').is_empty() || host.trim_end_matches('/').contains(['/', '?', '#', ',', ' ']) {
        return refuse(
            url.span(),
            format!("url = \"{text}\" is no address of one server: write {example}"),
        );
    }
    Ok(())
}

fn checked_text(text: Spanned<String>) -> Result<String, Wrong> {
    let (at, text) = (text.span(), text.into_inner());
    if text.is_empty() || text.len() > TEXT_MAX || text.contains(char::is_whitespace) {
        let message = format!("\"{text}\" is not usable: 1 to {TEXT_MAX} characters, and no spaces");
        return refuse(at, message);
    }
    Ok(text)
}

fn count(key: &str, value: Option<Spanned<u64>>, default: u32, max: u32) -> Result<u32, Wrong> {
    let Some(value) = value else { return Ok(default) };
    match u32::try_from(*value.get_ref()).ok().filter(|n| (1..=max).contains(n)) {
        Some(n) => Ok(n),
        None => out_of_range(
            value.span(),
            format!("{key} = {} is impossible: use 1 to {max}", value.get_ref()),
        ),
    }
}

fn window(value: Option<Spanned<String>>) -> Result<u64, Wrong> {
    let Some(value) = value else { return Ok(0) };
    let text = value.get_ref();
    let parsed = parse_duration(text).ok().map(|window| window.as_millis());
    match parsed.filter(|ms| *ms <= WINDOW_MAX_MS) {
        Some(ms) => Ok(u64::try_from(ms).unwrap_or_default()),
        None => out_of_range(
            value.span(),
            format!("batch_window = \"{text}\" is impossible: use up to \"60s\", as in \"500ms\" or \"5s\""),
        ),
    }
}

fn out_of_range<T>(at: Range<usize>, message: String) -> Result<T, Wrong> {
    refuse(at, message)
}

#[cfg(test)]
mod tests {
    use super::super::{FunctionConfig, FunctionConfigError, parse};
    use super::*;

    const START: &str = "name = \"f\"\nruntime = \"python\"\nentry = \"m.h\"\n";
    const NATS: &str = "[[source]]\ntype = \"nats\"\nurl = \"nats://q:4222/\"\nstream = \"ORDERS\"\n";
    const SQS: &str = "[[source]]\ntype = \"sqs\"\nurl = \"https://sqs.eu-central-1.amazonaws.com\"\n\
                       queue = \"123456789012/orders\"\n";

    fn read(sources: &str) -> Result<FunctionConfig, FunctionConfigError> {
        parse(&format!("{START}{sources}"))
    }

    #[test]
    fn a_source_names_its_queue_and_has_defaults() {
        let config = read(NATS).unwrap();
        assert_eq!(
            config.sources,
            [EventSource {
                name: "default".parse().unwrap(),
                kind: QueueKind::Nats,
                url: "nats://q:4222".to_owned(),
                credentials: None,
                queue: "ORDERS".to_owned(),
                consumer: None,
                subject: None,
                batch: 1,
                batch_window_ms: 0,
                concurrency: 1,
                max_deliveries: 5,
                dead_letter: None,
                on_success: None,
                on_failure: None,
            }]
        );
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<FunctionConfig>(&text).unwrap(), config);
        assert!(
            !serde_json::to_string(&parse(START).unwrap())
                .unwrap()
                .contains("source")
        );

        let all = "name = \"a\"\ncredentials = \"team\"\nbatch = 10\nbatch_window = \"500ms\"\nconcurrency = 4\n\
                   max_deliveries = 3\ndead_letter = \"123456789012/dead\"\non_success = \"ledger\"\n";
        let [source] = &read(&format!("{SQS}{all}")).unwrap().sources[..] else {
            panic!("one source")
        };
        assert_eq!(
            (
                source.batch,
                source.batch_window_ms,
                source.concurrency,
                source.max_deliveries
            ),
            (10, 500, 4, 3)
        );
        assert_eq!(source.on_success.as_ref().map(FunctionName::as_str), Some("ledger"));
        assert_eq!(
            source.to_string(),
            "https://sqs.eu-central-1.amazonaws.com/123456789012/orders"
        );
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let many: String = (0..=SOURCES_MAX)
            .map(|n| NATS.replace("[[source]]\n", &format!("[[source]]\nname = \"s{n}\"\n")))
            .collect();
        let two = format!("{NATS}{SQS}");
        let same = two.replace("[[source]]\n", "[[source]]\nname = \"a\"\n");
        for (text, line, why) in [
            (NATS.replace("\"nats\"", "\"kafka\""), 5, "\"sqs\""),
            (NATS.replace("stream = \"ORDERS\"", ""), 5, "stream is missing"),
            (NATS.replace("nats://", "http://"), 6, "nats://HOST:4222"),
            (NATS.replace("nats://", "nats://u:p@"), 6, "credentials"),
            (NATS.replace("4222", "4222,nats://r:4222"), 6, "one server"),
            (format!("{NATS}queue = \"a/b\"\n"), 8, "SQS's"),
            (format!("{SQS}subject = \"a\"\n"), 8, "NATS's"),
            (SQS.replace("123456789012/", ""), 7, "no path"),
            (format!("{NATS}batch = 0\n"), 8, "1 to 100"),
            (format!("{NATS}batch_window = \"2m\"\n"), 8, "60s"),
            (format!("{NATS}max_deliveries = 3\n"), 8, "dead_letter"),
            (format!("{NATS}on_failure = \"https://example.com/\"\n"), 8, "[async]"),
            (format!("{NATS}consumer = \"a.b\"\n"), 8, "no name"),
            (format!("{NATS}subject = \"a b\"\n"), 8, "no spaces"),
            (two, 5, "needs a name"),
            (same, 10, "rename one"),
            (many, 4 + 5 * 10 + 2, "more than 10"),
        ] {
            let error = read(&text).unwrap_err();
            assert!(
                error.message.contains(why) && error.line == Some(line),
                "{text}: {error:?}"
            );
        }
    }
}

//! What instances wrote, from all workers, as lines of JSON.

use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt as _, TryStreamExt as _};
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use rekindle_wire::access::{AccessRole, Caller, Scope};
use rekindle_wire::api::LogLine;
use rekindle_wire::clock::unix_s;
use rekindle_wire::interface::Params;
use rekindle_wire::interface::users::ReadLogs;
use rekindle_wire::{ApiError, ErrorCode};
use tokio_util::codec::{FramedRead, LinesCodec};
use tokio_util::io::StreamReader;

use super::named;
use crate::refusal::unknown_function;
use crate::refusal::{Refused, from_store};
use crate::state::Scheduler;

const TAIL_DEFAULT: usize = 100;
const TAIL_MAX: usize = 10_000;
/// A line is at most 16 KiB of text, which JSON may escape to six times that.
const LINE_MAX: usize = 128 << 10;

/// How often it is looked whether the key of a caller who follows is still valid.
const LOOK_EVERY: Duration = Duration::from_secs(5);

type LineStream = BoxStream<'static, String>;

pub(super) async fn logs(
    State(scheduler): State<Scheduler>,
    Params(wanted): Params<ReadLogs>,
    headers: HeaderMap,
) -> Result<Response, Refused> {
    let caller = Caller::of(&headers)?;
    let name = named(&scheduler, &wanted.name, wanted.namespace)?;
    let follow = wanted.follow.unwrap_or(false);
    let tail = wanted.tail.unwrap_or(TAIL_DEFAULT).min(TAIL_MAX);
    if scheduler.store.versions(&name, 1).await.map_err(from_store)?.is_empty() {
        return Err(unknown_function(&name));
    }
    let addresses = scheduler.state().fleet.addresses();
    if addresses.is_empty() {
        return Err(ApiError::new(
            ErrorCode::Unavailable,
            "no worker is connected, and logs lie on the workers: start one with `fn worker`",
        ));
    }
    let mut sources = Vec::new();
    for address in addresses {
        match scheduler.workers.logs(&address, &name, tail, follow).await {
            Ok(answer) => sources.push(lines(answer)),
            Err(error) => {
                tracing::warn!(%name, error = &error as &dyn std::error::Error, "a worker's log lines are missing");
            }
        }
    }
    if sources.is_empty() {
        return Err(ApiError::new(
            ErrorCode::Unavailable,
            "no worker gave its log lines: try again",
        ));
    }
    let merged: LineStream = if follow {
        stream::select_all(sources)
            .take_until(key_ends(scheduler.clone(), caller, Scope::Function(name)))
            .boxed()
    } else {
        stream::iter(newest(sources, tail).await).boxed()
    };
    let body = merged.map(|line| Ok::<_, std::convert::Infallible>(Bytes::from(line + "\n")));
    Ok(([(CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(body)).into_response())
}

/// Waits until what lets the caller read is revoked or has expired.
async fn key_ends(scheduler: Scheduler, caller: Caller, scope: Scope) {
    let may_read = || scheduler.keys.recheck(&caller, AccessRole::Reader, &scope, unix_s());
    while may_read().is_ok() {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// One worker's lines; they end when it goes away.
fn lines(answer: reqwest::Response) -> LineStream {
    let bytes = answer.bytes_stream().map_err(std::io::Error::other);
    let lines = FramedRead::new(StreamReader::new(bytes), LinesCodec::new_with_max_length(LINE_MAX));
    lines
        .take_while(|l| std::future::ready(l.is_ok()))
        .filter_map(async |l| l.ok())
        .boxed()
}

/// The last `tail` lines of all workers, by time.
async fn newest(sources: Vec<LineStream>, tail: usize) -> Vec<String> {
    let mut all = Vec::new();
    for source in sources {
        let some: Vec<_> = source.take(tail).collect().await;
        all.extend(some.into_iter().map(|line| {
            let at = serde_json::from_str::<LogLine>(&line).map_or(0, |l| l.unix_ms);
            (at, line)
        }));
    }
    // A stable sort: lines of the same millisecond keep their worker's order.
    all.sort_by_key(|(at, _)| *at);
    let skip = all.len().saturating_sub(tail);
    all.into_iter().skip(skip).map(|(_, line)| line).collect()
}

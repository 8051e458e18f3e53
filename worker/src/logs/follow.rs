//! Reads logs while they are written.

use std::sync::Arc;

use futures::stream::{self, Stream};
use rekindle_wire::api::{LogLine, LogStream};
use tokio::sync::broadcast::{self, error::RecvError};

/// Returns `past`, then new lines until the function is deleted. A reader that is too slow misses lines, and gets one
/// that says how many.
pub(super) fn follow(
    past: Vec<LogLine>,
    coming: broadcast::Receiver<Arc<LogLine>>,
) -> impl Stream<Item = LogLine> + Send + 'static {
    let state = (past.into_iter(), coming, None);
    stream::unfold(state, |(mut past, mut coming, mut held)| async move {
        if let Some(line) = past.next().or_else(|| held.take()) {
            return Some((line, (past, coming, held)));
        }
        let mut missed = 0;
        loop {
            match coming.recv().await {
                Ok(line) if missed == 0 => return Some((Arc::unwrap_or_clone(line), (past, coming, held))),
                Ok(line) => {
                    let text = format!("{missed} lines were left out here: the reader is too slow");
                    let notice = LogLine {
                        stream: LogStream::Platform,
                        text,
                        ..(*line).clone()
                    };
                    return Some((notice, (past, coming, Some(Arc::unwrap_or_clone(line)))));
                }
                Err(RecvError::Lagged(count)) => missed += count,
                Err(RecvError::Closed) => return None,
            }
        }
    })
}

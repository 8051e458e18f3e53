//! Sources of events: which there are, and what their readers say of them. Readers take them from here and report every
//! few seconds. What they said is kept in memory, for half a minute; a scheduler that begins to lead hears it anew.

pub(crate) mod known;

use std::collections::BTreeSet;

use rekindle_wire::api::{SourceInfo, SourceReports};
use rekindle_wire::event_source::READER_MAX;
use rekindle_wire::{ApiError, ErrorCode, FunctionId};

use crate::state::Scheduler;
use known::Key;

/// Maximum number of sources in one report.
const REPORTED_MAX: usize = 10_000;

/// The sources of a namespace, or of one function in it.
pub(crate) fn list(scheduler: &Scheduler, namespace: &str, function: Option<&FunctionId>) -> Vec<SourceInfo> {
    let now = scheduler.now();
    let all = scheduler.state().catalog.sources(namespace).into_iter();
    let wanted = all.filter(|info| function.is_none_or(|function| *function == info.function));
    let mut all: Vec<_> = wanted
        .map(|info| {
            let key = (info.function.clone(), info.source.name.clone());
            let readers = scheduler.sources_read.readers(&key, now);
            SourceInfo { readers, ..info }
        })
        .collect();
    all.sort_by(|a, b| (&a.function, &a.source.name).cmp(&(&b.function, &b.source.name)));
    all
}

/// Takes in what a reader says of the sources of a namespace.
///
/// # Errors
/// `bad_request` if its name cannot be used, or it reports too many.
pub(crate) fn report(scheduler: &Scheduler, namespace: &str, reports: SourceReports) -> Result<(), ApiError> {
    let SourceReports { reader, sources } = reports;
    let refused = |why: String| Err(ApiError::new(ErrorCode::BadRequest, why));
    if reader.is_empty() || reader.len() > READER_MAX || !reader.bytes().all(|b| b.is_ascii_graphic()) {
        return refused(format!("a reader's name is 1 to {READER_MAX} visible ASCII characters"));
    }
    if sources.len() > REPORTED_MAX {
        return refused(format!("a report is of at most {REPORTED_MAX} sources"));
    }
    let known = scheduler.state().catalog.sources(namespace);
    let known: BTreeSet<Key> = known
        .into_iter()
        .map(|info| (info.function, info.source.name))
        .collect();
    let reports = sources
        .into_iter()
        .map(|report| ((report.function, report.source), report.progress));
    let reports = reports.filter(|(key, _)| known.contains(key)).collect();
    scheduler.sources_read.take(&reader, reports, scheduler.now());
    Ok(())
}

//! What readers say of sources.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use rekindle_wire::api::{SourceProgress, SourceReader};
use rekindle_wire::event_source::PROBLEM_MAX;
use rekindle_wire::{FunctionId, SourceName};

use crate::clock::Millis;

/// How long what a reader said holds.
const HELD: Millis = Millis(30_000);
/// Maximum number of readers of one source.
const READERS_MAX: usize = 64;

pub(super) type Key = (FunctionId, SourceName);
/// What each reader of a source said last, and when.
type ReaderReports = BTreeMap<String, (Millis, SourceProgress)>;

/// What readers said.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    said: Mutex<BTreeMap<Key, ReaderReports>>,
}

impl Sources {
    /// Takes in what a reader says of sources that there are. What was said too long ago is forgotten.
    pub(super) fn take(&self, reader: &str, reports: Vec<(Key, SourceProgress)>, now: Millis) {
        let mut said = self.said.lock();
        for (key, mut progress) in reports {
            if let Some(problem) = &mut progress.problem {
                *problem = problem.chars().take(PROBLEM_MAX).collect();
            }
            let readers = said.entry(key).or_default();
            if readers.len() < READERS_MAX || readers.contains_key(reader) {
                readers.insert(reader.to_owned(), (now, progress));
            }
        }
        said.retain(|_, readers| {
            readers.retain(|_, (at, _)| now.since(*at) < HELD);
            !readers.is_empty()
        });
    }

    pub(super) fn readers(&self, key: &Key, now: Millis) -> Vec<SourceReader> {
        let said = self.said.lock();
        let readers = said.get(key).into_iter().flatten();
        let fresh = readers.filter(|(_, (at, _))| now.since(*at) < HELD);
        let reader = |(reader, (_, progress)): (&String, &(Millis, SourceProgress))| SourceReader {
            reader: reader.clone(),
            progress: progress.clone(),
        };
        fresh.map(reader).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        ("hello".parse().unwrap(), SourceName::default())
    }

    fn lag(lag: u64) -> SourceProgress {
        SourceProgress {
            lag: Some(lag),
            ..SourceProgress::default()
        }
    }

    #[test]
    fn what_a_reader_said_holds_until_it_says_something_else_or_falls_silent() {
        let (sources, start) = (Sources::default(), Millis(1_000));
        sources.take("a", vec![(key(), lag(7))], start);
        sources.take("b", vec![(key(), lag(8))], start);
        sources.take("a", vec![(key(), lag(5))], Millis(21_000));
        let lags = |now| -> Vec<_> {
            let readers = sources.readers(&key(), now).into_iter();
            readers.map(|r| (r.reader, r.progress.lag.unwrap())).collect()
        };
        assert_eq!(lags(Millis(22_000)), [("a".to_owned(), 5), ("b".to_owned(), 8)]);
        assert_eq!(lags(Millis(31_000)), [("a".to_owned(), 5)]);
        sources.take("c", Vec::new(), Millis(60_000));
        assert!(sources.said.lock().is_empty());
    }

    #[test]
    fn a_source_has_a_bounded_number_of_readers_and_each_says_little() {
        let sources = Sources::default();
        for n in 0..READERS_MAX + 5 {
            let problem = Some("x".repeat(PROBLEM_MAX * 2));
            let progress = SourceProgress { problem, ..lag(1) };
            sources.take(&format!("r{n}"), vec![(key(), progress)], Millis(0));
        }
        let readers = sources.readers(&key(), Millis(1));
        assert_eq!(readers.len(), READERS_MAX);
        let problem = readers[0].progress.problem.as_ref().unwrap();
        assert_eq!(problem.len(), PROBLEM_MAX);
    }
}

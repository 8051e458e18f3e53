//! How reading a source goes, as its reader says it to the platform.

use parking_lot::Mutex;
use rekindle_wire::api::{SourceProgress, SourceState};

/// Shared by the reader of a source, its batches, and who reports on it.
#[derive(Debug, Default)]
pub(crate) struct Progress(Mutex<SourceProgress>);

impl Progress {
    /// How it goes at the moment.
    pub(crate) fn read(&self) -> SourceProgress {
        self.0.lock().clone()
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut SourceProgress)) {
        change(&mut self.0.lock());
    }

    /// All is well again.
    pub(crate) fn reads(&self) {
        self.change(|progress| (progress.state, progress.problem) = (SourceState::Reading, None));
    }

    /// Something keeps it from going on. Returns whether that is news.
    pub(crate) fn stumbles(&self, state: SourceState, problem: String) -> bool {
        let mut progress = self.0.lock();
        let is_news = progress.problem.as_ref() != Some(&problem);
        (progress.state, progress.problem) = (state, Some(problem));
        is_news
    }
}

//! A snapshot that is open on this host.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rekindle_init::locks::Lock;
use rekindle_init::protocol::Clocks;
use rekindle_pager::{AheadPage, PageRef};
use rekindle_snapshotter::Snapshot;
use rekindle_snapshotter::manifest::Origin;
use rekindle_wire::api::RestoredBy;
use rekindle_wire::{FunctionId, SnapshotId};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::connections::Connection;
use super::criu_images::CriuImages;
use super::level::Charge;
use super::notes::CaptureNotes;
use super::program::RestoreProgram;
use super::template::Template;
use super::working_set::{WorkingSet, WorkingSetUse};
use crate::host::file_pages::FilePages;

/// Where a snapshot's memory is when a restore begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryTier {
    /// It is open on this host, with its template.
    Template,
    /// All its chunks are in the disk's cache.
    Disk,
    /// Some are only in the store.
    S3,
}

impl MemoryTier {
    /// Returns the tier in a word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Template => "template",
            Self::Disk => "disk",
            Self::S3 => "s3",
        }
    }
}

/// A snapshot that instances can be restored from.
pub struct OpenSnapshot {
    /// The snapshot id.
    pub id: SnapshotId,
    /// Its images as CRIU reads them.
    pub(crate) images: CriuImages,
    /// The user set apart for its function, which identifies the function.
    pub uid: u32,
    /// The clocks of its processes.
    pub clocks: Clocks,
    /// The notes of the checkpoint.
    pub notes: CaptureNotes,
    /// Its memory.
    pub template: Arc<Template>,
    /// What restores it without CRIU, or why CRIU restores it.
    pub(super) program: Result<Arc<RestoreProgram>, String>,
    pub(super) snapshot: Snapshot,
    /// Addresses that the kernel touches first.
    pub(super) first: Vec<u64>,
    pub(super) working_set: Mutex<WorkingSet>,
    /// Held by whoever stores the working set.
    pub(super) storing: tokio::sync::Mutex<()>,
    /// Memory that the images take.
    pub(super) images_charge: Charge,
    /// When it was last asked for.
    pub(super) restored: Mutex<Instant>,
    /// Where its memory was when it was opened.
    pub(super) found_in: MemoryTier,
    /// How long the store took to answer when it was opened.
    pub(crate) fetching: Duration,
    /// Bytes of its memory that CRIU itself reads at each restore.
    pub eager_bytes: u64,
    /// Locks that CRIU's restore loses.
    pub locks: Vec<Lock>,
    /// Connections that each copy gets.
    pub(crate) connections: Vec<Connection>,
    /// Pages of files that copies touch until their first response, once this host knows.
    pub(crate) file_pages: OnceLock<FilePages>,
    /// Cancelled when it was deleted, replaced or found broken.
    pub(crate) forgotten: CancellationToken,
    /// Closed when the template has been filled, as far as it is worth its memory.
    pub(super) filling: watch::Receiver<()>,
}

impl OpenSnapshot {
    /// Returns whether it is of an instance of this function.
    pub(super) fn is_of(&self, name: &FunctionId) -> bool {
        matches!(&self.snapshot.manifest.origin, Origin::Function { function, .. } if function == name)
    }

    /// Returns the program that restores it without CRIU, unless it has none or it has failed recently.
    pub(crate) fn program(&self) -> Option<&Arc<RestoreProgram>> {
        self.program.as_ref().ok().filter(|program| program.is_usable())
    }

    /// Returns what restores it on this host.
    pub(crate) fn restored_by(&self) -> RestoredBy {
        let because = match &self.program {
            Ok(program) if program.is_usable() => return RestoredBy::Program,
            Ok(_) => "its restore program has failed",
            Err(why) => why,
        };
        RestoredBy::Criu {
            because: because.to_owned(),
        }
    }

    /// Waits until the template has been filled in the background.
    pub async fn until_filled(&self) {
        let mut filling = self.filling.clone();
        // Nothing is ever sent.
        while filling.changed().await.is_ok() {}
    }

    /// Begins a restore. Returns whether it is recorded, and the pages to map before its first instruction, by address.
    pub fn begin(&self) -> (WorkingSetUse, Arc<[AheadPage]>) {
        let set = self.working_set.lock();
        (set.begin(), set.ahead())
    }

    /// Records a restore that has taken `faults` up to its first response. `begun` is the result of `begin`, `touched`
    /// lists its pages if they are recorded, and `written` returns which of some pages it has written. Returns whether
    /// the working set is to be stored now.
    pub fn record(
        &self,
        begun: WorkingSetUse,
        touched: &[PageRef],
        written: impl FnOnce(&[PageRef]) -> HashSet<PageRef>,
        faults: u64,
    ) -> bool {
        let written = if begun.records {
            let known: Vec<_> = self.working_set.lock().ahead().iter().map(|ahead| ahead.page).collect();
            written(&[touched, &known].concat())
        } else {
            HashSet::new()
        };
        self.change_working_set(|set| set.record(begun, touched, written, faults))
    }

    pub(super) fn change_working_set<R>(&self, change: impl FnOnce(&mut WorkingSet) -> R) -> R {
        // Both change under one lock, so that the template keeps the newer of two sets.
        let mut set = self.working_set.lock();
        let before = set.ahead();
        let answer = change(&mut set);
        let ahead = set.ahead();
        if !Arc::ptr_eq(&before, &ahead) {
            self.template.set_ahead(&ahead);
        }
        answer
    }
}

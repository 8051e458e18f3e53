//! Working sets in the store: read at a snapshot's opening, and written after its restores.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rekindle_init::causes::chain;
use rekindle_pager::{AheadPage, PAGE, PageRef};
use rekindle_snapshotter::working_set::{TouchedPage, WorkingSetError};
use rekindle_snapshotter::{
    PageIndex, Process, UncheckedWorkingSet, WorkingSetPack, WorkingSetPage, keys, load_working_set, store_working_set,
};
use rekindle_wire::SnapshotId;
use tokio::task::JoinHandle;

use super::cache::Snapshots;
use super::open_snapshot::OpenSnapshot;
use super::template::Template;
use super::working_set::StoredRecording;

/// Maximum number of bytes that the kernel maps around a touched page of a file; the kernel's default.
const FAULT_AROUND: u64 = 64 << 10;

impl Snapshots {
    /// Stores the pages that a snapshot's restores touched, in that order, for hosts without any of it. They are merged
    /// with what other hosts have stored.
    ///
    /// The set also contains the pages that the kernel touches before, so that they are not requested separately. And
    /// it contains the pages that the kernel maps along with these, whose first touch no restore on this host records.
    /// If two hosts store at the same moment, one may lose its additions, or a recording that it has begun again.
    ///
    /// # Errors
    /// Returns an error when the store fails; the set is used here, and the next restore tries again. Also returns an
    /// error when a later build has stored a set, which stays.
    pub async fn store_working_set(&self, snapshot: &OpenSnapshot) -> Result<(), WorkingSetError> {
        let _one = snapshot.storing.lock().await;
        let (known, number) = {
            let set = snapshot.working_set.lock();
            if !set.has_unsent() {
                // Whoever held the lock before has stored this as well.
                return Ok(());
            }
            (set.pages(), set.begin().number)
        };
        let loaded = match load_working_set(&self.store, &snapshot.id).await {
            Err(error) if error.is_of_a_later_build() => {
                snapshot.change_working_set(|set| set.sent(number, u32::MAX));
                return Err(error);
            }
            Err(error @ (WorkingSetError::Store { .. } | WorkingSetError::Shutdown)) => return Err(error),
            loaded => loaded,
        };
        let checked = self.check_working_set(&snapshot.id, loaded, &snapshot.snapshot.processes);
        let checked = checked.await.map_err(|_| WorkingSetError::Shutdown)?;
        let template = Arc::clone(&snapshot.template);
        let put = move || checked.map(|pack| put_working_set(pack, &template, &known));
        let stored = tokio::task::spawn_blocking(put).await;
        let stored = stored.map_err(|_| WorkingSetError::Shutdown)?;
        let Some((merged, restores)) = snapshot.change_working_set(|set| set.merge(stored.as_ref())) else {
            return Ok(());
        };
        let first = snapshot.template.pages_at(&mapped_around(&snapshot.first)).into_iter();
        // Pages that are also in the recorded order keep their entry there.
        let recorded: HashSet<_> = merged.pages.iter().map(|p| p.page).collect();
        let first = first.filter(|page| !recorded.contains(page));
        let first = first.map(|page| AheadPage { page, written: false });
        let order: Vec<_> = first
            .chain(merged.pages.iter().copied())
            .map(|AheadPage { page, written }| TouchedPage {
                pid: page.pid.cast_unsigned(),
                page: PageIndex(page.page),
                written,
            })
            .collect();
        if !self.tier.is_open(&snapshot.id) {
            // Nothing may be stored for a snapshot that was deleted in the meantime.
            return Ok(());
        }
        store_working_set(&self.store, &snapshot.snapshot, &self.reader, merged.recording, &order).await?;
        snapshot.change_working_set(|set| set.sent(merged.recording.number, restores));
        Ok(())
    }

    /// Compares a working set with its snapshot, in a blocking task that starts now. A damaged or forged set is logged,
    /// counted and ignored. Without it a snapshot restores as well, only more slowly.
    pub(super) fn check_working_set(
        &self,
        id: &SnapshotId,
        loaded: Result<Option<UncheckedWorkingSet>, WorkingSetError>,
        processes: &[Process],
    ) -> JoinHandle<Option<WorkingSetPack>> {
        let (id, processes) = (id.clone(), processes.to_vec());
        let refused = Arc::clone(&self.refused_working_sets);
        tokio::task::spawn_blocking(move || {
            let checked = loaded.and_then(|set| {
                let checked = set.map(|set| set.check(&processes)).transpose();
                let key = keys::working_set(&id);
                checked.map_err(|cause| WorkingSetError::Pack { key, cause })
            });
            let error = match checked {
                Ok(pack) => return pack,
                Err(error) => error,
            };
            if matches!(error, WorkingSetError::Pack { .. }) && !error.is_of_a_later_build() {
                refused.fetch_add(1, Ordering::Relaxed);
                let error = chain(&error);
                tracing::warn!(snapshot = %id, error, "a working set is refused: restores go on by faults, and record \
                    another");
            } else {
                tracing::warn!(snapshot = %id, error = chain(&error), "no working set");
            }
            None
        })
    }
}

/// Returns the pages that the kernel may map when one of these addresses is touched before a pager watches it. They are
/// those of the same 64 KiB (its fault-around), as far as the file has them. A thread's stack begins below its rseq
/// area.
fn mapped_around(addresses: &[u64]) -> Vec<u64> {
    let windows: BTreeSet<u64> = addresses.iter().map(|at| at - at % FAULT_AROUND).collect();
    let pages = |window: u64| (window..window.saturating_add(FAULT_AROUND)).step_by(PAGE as usize);
    windows.into_iter().flat_map(pages).collect()
}

/// Puts the pages of a working set into the template, except those that are `known`.
pub(super) fn put_working_set(pack: WorkingSetPack, template: &Template, known: &HashSet<PageRef>) -> StoredRecording {
    let mut failed = None;
    let put = |page: WorkingSetPage| {
        let at = PageRef {
            pid: page.pid.cast_signed(),
            page: page.page.0,
        };
        if failed.is_none() && !known.contains(&at) {
            failed = template.put_page(at, page.bytes()).err();
        }
        AheadPage {
            page: at,
            written: page.written,
        }
    };
    let pages = pack.pages.into_iter().map(put).collect();
    if let Some(error) = failed {
        tracing::warn!(%error, "a template cannot be written: missing pages are fetched when touched");
    }
    StoredRecording {
        recording: pack.recording,
        pages,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_maps_around_is_whole_windows_each_once() {
        let pages = mapped_around(&[0x7f12_3456_7a80, 0x7f12_3456_0000, 0x7f12_3457_0008]);
        let expected: Vec<u64> = (0x7f12_3456_0000..0x7f12_3458_0000).step_by(4096).collect();
        assert_eq!(pages, expected);
        assert_eq!(
            mapped_around(&[u64::MAX]).len(),
            16,
            "a wrong address is no reason to panic"
        );
    }
}

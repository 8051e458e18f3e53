//! What the leader knows of schedules, and whose turn it is to change that.

use parking_lot::Mutex;
use rekindle_wire::FunctionId;

use super::table::Table;
use crate::store::{Store, StoreError};

/// The schedules of the functions that serve.
#[derive(Debug, Default)]
pub(crate) struct Schedules {
    pub(super) table: Mutex<Table>,
    /// Held while schedules are changed: in memory and in the database they change in the same order.
    pub(super) turn: tokio::sync::Mutex<()>,
}

impl Schedules {
    /// Reads how far the schedules had got.
    pub(crate) async fn read(store: &Store) -> Result<Self, StoreError> {
        Ok(Self {
            table: Mutex::new(Table::read(store.schedules().await?)),
            turn: tokio::sync::Mutex::default(),
        })
    }

    /// Forgets a deleted function.
    pub(crate) fn forget(&self, function: &FunctionId) {
        self.table.lock().forget(function);
    }

    /// Number of schedules that are followed, and of paused ones.
    pub(crate) fn count(&self) -> [(&'static str, u64); 2] {
        let table = self.table.lock();
        let live = || table.entries.values().filter(|entry| entry.live.is_some());
        let paused = live().filter(|entry| entry.paused).count();
        [("active", (live().count() - paused) as u64), ("paused", paused as u64)]
    }
}

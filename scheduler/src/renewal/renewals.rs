//! The state that renewals of snapshots share.

use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;
use rekindle_wire::FunctionId;
use rekindle_wire::renewal::RenewalReason;
use tokio::sync::Notify;

/// State shared by renewals.
#[derive(Debug, Default)]
pub(crate) struct Renewals {
    /// Signalled when a snapshot is to be renewed.
    pub(super) wake: Notify,
    pub(super) waiting: Mutex<BTreeMap<(RenewalReason, bool), u64>>,
    /// When each function's snapshot was last renewed.
    pub(super) renewed: Mutex<HashMap<FunctionId, i64>>,
    /// The worker on which the last attempt failed.
    pub(super) failed_on: Mutex<HashMap<FunctionId, String>>,
}

impl Renewals {
    /// Number of waiting renewals at the last count, by reason and by whether they were given up.
    pub(crate) fn waiting(&self) -> BTreeMap<(RenewalReason, bool), u64> {
        self.waiting.lock().clone()
    }
}

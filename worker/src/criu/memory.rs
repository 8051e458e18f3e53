//! The memory of processes that CRIU restores, served by a pager.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rekindle_pager::address_map::AddressMap;
use rekindle_pager::{Handover, Layout, LostPage, PageSource, Pager, PagerConfig};
use rekindle_wire::{ApiError, FunctionId};

use super::prepared_restore::PreparedRestore;
use super::stages::{PagedMemory, PagesAhead};
use crate::errors::restore_failed;

/// How long the processes may take until the pager has their memory.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(20);

/// What is done when a page is lost. Called once, on the pager's thread. It must kill the processes.
pub(crate) type OnLost = Box<dyn FnOnce(LostPage) + Send>;

/// Where the memory of restored processes comes from.
pub(crate) struct RestoredMemory {
    pub(crate) function: FunctionId,
    pub(crate) source: Arc<dyn PageSource>,
    pub(crate) pids: Vec<i32>,
    pub(crate) layout: Layout,
    pub(crate) maps: HashMap<i32, AddressMap>,
    /// Whether to record the pages that are touched.
    pub(crate) record: bool,
    pub(crate) on_lost: OnLost,
    pub(crate) ahead: PagesAhead,
}

impl PreparedRestore {
    /// Starts the pager.
    ///
    /// # Errors
    /// Returns `restore_failed` when the pager cannot be started.
    pub(crate) fn start_pager(&mut self, pages: RestoredMemory) -> Result<PagedMemory, ApiError> {
        let (handover, given) = match self.fork_handover.take() {
            Some((ancestor, pid)) => (Handover::Fork(ancestor, pid), Vec::new()),
            None => (Handover::Given, pages.pids.clone()),
        };
        let (pager, ahead) = pages.serve(handover)?;
        Ok(PagedMemory { pager, given, ahead })
    }
}

impl RestoredMemory {
    /// Starts a pager of these pages. Also returns which pages to fill ahead.
    ///
    /// # Errors
    /// Returns `restore_failed` when the pager cannot be started.
    pub(crate) fn serve(self, handover: Handover) -> Result<(Pager, PagesAhead), ApiError> {
        let pager = Pager::start(PagerConfig {
            name: format!("pager-{}", self.function),
            handover,
            source: self.source,
            layout: self.layout,
            maps: self.maps,
            record: self.record,
            handshake_limit: HANDSHAKE_LIMIT,
            on_lost: self.on_lost,
        });
        let pager = pager.map_err(|e| restore_failed("start the pager", &e))?;
        Ok((pager, self.ahead))
    }
}

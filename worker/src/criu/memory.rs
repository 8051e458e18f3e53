//! The memory of processes that CRIU restores, served by a pager.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rekindle_pager::address_map::AddressMap;
use rekindle_pager::{Handover, Layout, LostPage, PageSource, Pager, PagerConfig};
use rekindle_wire::{ApiError, ErrorCode};

use super::prepared_restore::PreparedRestore;
use super::restore::failed;
use super::stages::{PagedMemory, PagesAhead};
use crate::host::sandbox::Sandbox;
use crate::instance::Instance;
use crate::worker::Worker;

/// How long the processes may take until the pager has their memory.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(20);

/// Where the memory of restored processes comes from.
pub(crate) struct Pages {
    /// Name of the memory's owner, for the message about a lost page.
    pub(crate) owner: String,
    pub(crate) source: Arc<dyn PageSource>,
    pub(crate) pids: Vec<i32>,
    pub(crate) layout: Layout,
    pub(crate) maps: HashMap<i32, AddressMap>,
    /// Whether to record the pages that are touched.
    pub(crate) record: bool,
    /// The error code that the instance dies with when a page is lost.
    pub(crate) code: ErrorCode,
    pub(crate) ahead: PagesAhead,
}

impl PreparedRestore {
    /// Starts the pager. If a page is lost later, it kills `instance`.
    ///
    /// # Errors
    /// Returns `restore_failed` when the pager cannot be started.
    pub(crate) fn start_pager(
        &mut self,
        worker: &Arc<Worker>,
        instance: &Arc<Instance>,
        pages: Pages,
    ) -> Result<PagedMemory, ApiError> {
        let (handover, given) = match self.fork_handover.take() {
            Some((ancestor, pid)) => (Handover::Fork(ancestor, pid), Vec::new()),
            None => (Handover::Given, pages.pids.clone()),
        };
        let (pager, ahead) = pages.serve(worker, instance, &self.sandbox, handover)?;
        Ok(PagedMemory { pager, given, ahead })
    }
}

impl Pages {
    /// Starts a pager of these pages for processes in `sandbox`. If a page is lost later, it kills `instance`. Also
    /// returns which pages to fill ahead.
    ///
    /// # Errors
    /// Returns `restore_failed` when the pager cannot be started.
    pub(crate) fn serve(
        self,
        worker: &Arc<Worker>,
        instance: &Arc<Instance>,
        sandbox: &Arc<Sandbox>,
        handover: Handover,
    ) -> Result<(Pager, PagesAhead), ApiError> {
        let pages = self;
        let (judged, sandbox) = (Arc::downgrade(instance), Arc::downgrade(sandbox));
        let (owner, code) = (pages.owner, pages.code);
        let measuring = Arc::downgrade(worker);
        let on_lost = move |lost: LostPage| {
            tracing::error!(of = owner, error = %lost, "a page is lost; the instance is killed");
            if let Some(worker) = measuring.upgrade() {
                worker.metrics.page_lost();
            }
            let message = match code {
                // Callers see this. Where the memory was to come from is the operator's to know.
                ErrorCode::MigrationLost => format!("memory of {owner} cannot be had, so the instance was killed"),
                _ => format!("memory of {owner} cannot be had, so the instance was killed: {lost}"),
            };
            if let Some(instance) = judged.upgrade() {
                instance.judge(ApiError::new(code, message));
            }
            if let Some(sandbox) = sandbox.upgrade() {
                sandbox.kill();
            }
        };
        let pager = Pager::start(PagerConfig {
            name: format!("pager-{}", instance.spec.function),
            handover,
            source: pages.source,
            layout: pages.layout,
            maps: pages.maps,
            record: pages.record,
            handshake_limit: HANDSHAKE_LIMIT,
            on_lost: Box::new(on_lost),
        });
        let pager = pager.map_err(|e| failed("start the pager", &e))?;
        worker.metrics.pagers.watch(pager.stats());
        Ok((pager, pages.ahead))
    }
}

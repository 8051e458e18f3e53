//! What the scheduler and other workers ask of a worker. Every call carries the cluster's secret in
//! [`crate::headers::CLUSTER_TOKEN`]. Errors are [`crate::ApiError`] as JSON. Gateways send invocations to
//! `ANY /invoke/{instance}/{path}`, whose bodies stream both ways.
//!
//! A migration is prepared by [`ExpectTarget`] and [`PrepareSource`], whose source sends [`PrepareTarget`].
//! [`PerformMigration`] performs it: the source sends [`SendImages`] and [`ResumeTarget`], the target takes
//! [`ReadPages`], [`ReadPage`] for page faults, and [`EndSource`]. If it fails, the instance continues as before.

use crate::api::InstanceObjects;
use crate::ids::{FunctionId, InstanceId, MigrationId};
use crate::internal::{PrepareRequest, StartInstance};
use crate::migration::{self, ExpectedInstance, HeldCopy, MigrationPhases, SourceOrder, TargetOrder, TargetState};
use crate::secret::Secret;

crate::endpoints! {
    /// The worker's interface, without invocations.
    WORKER:

    /// Starts an instance. The response precedes its being ready.
    [Scheduler] POST "/instances" Start {} (StartInstance) => ACCEPTED ();

    /// Stops an instance; 409 `conflict` while it serves a request and is only to be stopped if idle.
    [Scheduler] DELETE "/instances/{id}" Stop {
        /// The instance.
        id: InstanceId;
        /// Only if it serves nothing.
        if_idle: bool
    } () => NO_CONTENT ();

    /// Looks at what an instance's processes have from the kernel.
    [Scheduler] GET "/instances/{id}/objects" ReadObjects {
        /// The instance.
        id: InstanceId
    } () => OK InstanceObjects;

    /// Parks an instance that serves nothing.
    [Scheduler] POST "/instances/{id}/park" Park {
        /// The instance.
        id: InstanceId
    } () => NO_CONTENT ();

    /// Gives an instance secrets in place of those that it has; 409 `conflict` while it starts.
    [Scheduler] PUT "/instances/{id}/secrets" SetSecrets {
        /// The instance.
        id: InstanceId
    } (Vec<Secret>) => NO_CONTENT ();

    /// Builds, boots, warms up and snapshots a version. The response is lines of [`crate::internal::PrepareEvent`].
    [Scheduler] POST "/prepare" Prepare {} (PrepareRequest) => OK ();

    /// Reads a function's log on this worker. The response is lines of [`crate::api::LogLine`].
    [Scheduler] GET "/logs/{function}" ReadLogs {
        /// The function.
        function: FunctionId;
        /// Lines from the end; 100 by default.
        tail: usize,
        /// Keep the response open, and send new lines as they are written.
        follow: bool
    } () => OK ();

    /// Stops a function's instances, and removes its logs.
    [Scheduler] DELETE "/functions/{name}" RemoveFunction {
        /// The function.
        name: FunctionId
    } () => NO_CONTENT ();

    /// To the target: an instance will come from another worker. Others are rejected.
    [Scheduler] PUT "/migration-targets/{id}/expected" | "/arrivals/{id}/expected" ExpectTarget {
        /// The migration.
        id: MigrationId
    } (ExpectedInstance) => NO_CONTENT ();

    /// To the source: prepares itself and the target. The instance continues.
    [Scheduler] POST "/migration-sources" | "/departures" PrepareSource {} (SourceOrder) => NO_CONTENT ();

    /// To the source: cancels a migration before the instance has left.
    [Scheduler] DELETE "/migration-sources/{id}" | "/departures/{id}" CancelSource {
        /// The migration.
        id: MigrationId
    } () => NO_CONTENT ();

    /// To the source: performs the migration. The response comes when the copy runs.
    [Scheduler] POST "/migration-sources/{id}/perform" | "/departures/{id}/leave" PerformMigration {
        /// The migration.
        id: MigrationId
    } (migration::SettleLimit) => OK MigrationPhases;

    /// To the target: prepares a sandbox and the snapshot's template.
    [Worker] POST "/migration-targets" | "/arrivals" PrepareTarget {} (TargetOrder) => NO_CONTENT ();

    /// To the target: restores the processes from the bundle in the body, and holds them.
    [Worker] POST "/migration-targets/{id}/images" | "/arrivals/{id}/images" SendImages {
        /// The migration.
        id: MigrationId
    } () => OK HeldCopy;

    /// To the target: lets the processes run and accept requests.
    [Worker] POST "/migration-targets/{id}/resume" | "/arrivals/{id}/go" ResumeTarget {
        /// The migration.
        id: MigrationId
    } () => OK TargetState;

    /// To the target: reads its state.
    [Worker] GET "/migration-targets/{id}" | "/arrivals/{id}" ReadTarget {
        /// The migration.
        id: MigrationId
    } () => OK TargetState;

    /// To the target: the instance must not run; 409 `conflict` if it does.
    [Worker] DELETE "/migration-targets/{id}" | "/arrivals/{id}" CancelTarget {
        /// The migration.
        id: MigrationId
    } () => NO_CONTENT ();

    /// To the source: reads written pages in order, as page blocks.
    [Worker] GET "/migration-sources/{id}/pages" | "/departures/{id}/pages" ReadPages {
        /// The migration.
        id: MigrationId,
        /// Number of the page after the last.
        to: u64;
        /// Number of the first page; 0 by default.
        from: u64
    } () => OK ();

    /// To the source: reads the block with this page, for a page fault.
    [Worker] GET "/migration-sources/{id}/pages/{number}" | "/departures/{id}/pages/{number}" ReadPage {
        /// The migration.
        id: MigrationId,
        /// Number of the page.
        number: u64
    } () => OK ();

    /// To the source: every page has arrived, so it releases the rest.
    [Worker] POST "/migration-sources/{id}/done" | "/departures/{id}/done" EndSource {
        /// The migration.
        id: MigrationId
    } () => NO_CONTENT ();
}

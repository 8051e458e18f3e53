//! What gateways and workers ask of the scheduler. Every call carries the cluster's secret in
//! [`crate::headers::CLUSTER_TOKEN`]. Errors are [`crate::ApiError`] as JSON. What users ask goes through a gateway to
//! the same address, see [`crate::api`].

use crate::asynchronous::{
    AcceptedCall, CallOutcome, CallResult, CallbackOutcome, ClaimRequest, Claims, NewCall, Renewal,
};
use crate::ids::{CallId, FunctionId, GatewayId, Namespace, WorkerId};
use crate::internal::{
    Heartbeat, HeartbeatResponse, KeysResponse, LeaseReport, LeaseResponse, Placement, PlacementRequest,
    RoutesResponse, UsageReport,
};
use crate::stats::{TrafficReport, TrafficResponse};

crate::endpoints! {
    /// The scheduler's interface for roles.
    SCHEDULER:

    /// Asks for an instance to send an invocation to.
    [Gateway] POST "/internal/placements" Place {} (PlacementRequest) => OK Placement;

    /// Reports leases, and renews them.
    [Gateway] POST "/internal/leases" ReportLeases {} (LeaseReport) => OK LeaseResponse;

    /// Waits until a lease is recalled.
    [Gateway] GET "/internal/recalls" AwaitRecalls {
        /// The gateway that holds the leases.
        gateway: GatewayId;
        /// For how long, in milliseconds. By default not at all.
        wait_ms: u64
    } () => OK LeaseResponse;

    /// Waits until aliases change. A gateway has applied the revision that it asks with.
    [Gateway] GET "/internal/routes" AwaitRoutes {
        /// The gateway.
        gateway: GatewayId;
        /// The lead that its revision is of.
        epoch: String,
        /// Its revision. By default none.
        revision: u64,
        /// For how long, in milliseconds. By default not at all.
        wait_ms: u64,
        /// A function that the gateway does not know. If the scheduler does not either, the answer is that error.
        wanted: FunctionId
    } () => OK RoutesResponse;

    /// Waits until keys of the API change. A gateway has applied the revision that it asks with.
    [Gateway] GET "/internal/keys" AwaitKeys {
        /// The gateway.
        gateway: GatewayId;
        /// The lead that its revision is of.
        epoch: String,
        /// Its revision. By default none.
        revision: u64,
        /// For how long, in milliseconds. By default not at all.
        wait_ms: u64
    } () => OK KeysResponse;

    /// Reports counts of invocations.
    [Gateway] POST "/internal/traffic" ReportTraffic {} (TrafficReport) => OK TrafficResponse;

    /// Reports what invocations used. A report that is repeated counts once.
    [Gateway] POST "/internal/usage" ReportUsage {} (UsageReport) => OK ();

    /// Reports what runs on a worker.
    [Worker] POST "/internal/heartbeat" Beat {} (Heartbeat) => OK HeartbeatResponse;

    /// Asks whether a worker runs, or makes ready, any function of a namespace. `unavailable` if the scheduler has not
    /// heard of it lately.
    [Gateway] GET "/internal/workers/{worker}/namespaces/{namespace}" AskHost {
        /// The worker.
        worker: WorkerId,
        /// The namespace.
        namespace: Namespace
    } () => OK bool;

    /// Stores an asynchronous invocation.
    [Gateway] POST "/internal/async/calls" AcceptCall {} (NewCall) => ACCEPTED AcceptedCall;

    /// Waits for asynchronous invocations to run.
    [Gateway] POST "/internal/async/claims" ClaimCalls {} (ClaimRequest) => OK Claims;

    /// Reports which asynchronous invocations still run.
    [Gateway] POST "/internal/async/renewals" RenewCalls {} (Renewal) => OK ();

    /// Reports the outcome of an attempt at an asynchronous invocation.
    [Gateway] POST "/internal/async/outcomes" EndCall {} (CallOutcome) => OK ();

    /// Reports the outcome of an attempt at a callback.
    [Gateway] POST "/internal/async/callbacks" EndCallback {} (CallbackOutcome) => OK ();

    /// Reads the result of an asynchronous invocation.
    [Gateway] GET "/internal/async/results/{id}" ReadResult {
        /// The invocation.
        id: CallId;
        /// How long to wait for it, in milliseconds. By default not at all.
        wait_ms: u64
    } () => OK CallResult;
}

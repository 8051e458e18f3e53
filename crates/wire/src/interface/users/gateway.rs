//! What the gateway serves itself. It finds these by hosts and prefixes, not by their templates.

use super::described::{Access, Described, Field, Message, Place, Reach, one};
use serde_json::Value;

use crate::api::AuthStatus;
use crate::asynchronous::AcceptedCall;
use crate::ids::{CallId, FunctionId, FunctionName, Namespace};

described! {
    /// What the gateway answers itself.
    GATEWAY, DESCRIBED_GATEWAY:

    /// Invoke a function with an event
    ///
    /// The body is the event. The response is the function's own.
    invocations [Invoker Function] POST "/v1/functions/{name}/invocations" Invoke {
        /// the function
        name: FunctionName;
        /// the namespace; `namespace_not_found` (404) if there is none of that name
        namespace: Namespace
    } () => OK () "what the function answered; headers x-request-id, x-fn-start, x-fn-instance, x-fn-version, \
        server-timing"
    header "x-fn-force-start" "`booted` or `restored`: start a fresh instance this way"
    query "async" "`true` to run it later: see `/async-function/{name}`"
    takes "application/json" Value "the event"
    or ACCEPTED AcceptedCall "with `async=true`: it is kept, and run later"
    fails
        BadRequest "a start that is not possible",
        FunctionNotFound,
        TooLarge,
        Throttled "with Retry-After",
        QuotaExceeded,
        FunctionError, InvalidResponse, FunctionCrashed, FunctionOutOfMemory, BootFailed, RestoreFailed, SnapshotLost,
        NoCapacity "with Retry-After",
        Unavailable "with Retry-After",
        FunctionTimeout;

    /// This document
    platform [Open] GET "/v1/openapi.json" ReadDescription {} () => OK () "OpenAPI 3.1"
    sends "application/json" Value
    fails;

    /// How to sign in, and who the caller is
    ///
    /// Needs no key. With one, or with a token or a certificate, it says whose that is.
    access [Open] GET "/v1/auth" ReadAuth {} () => OK AuthStatus "the issuers, and the caller"
    fails Unauthorized "what was sent is not taken, and why";

    /// Call a function
    ///
    /// Any method. Also at the host `{name}.localhost`, with any path. `{name}@8` and the host `8--{name}.localhost`
    /// are version 8, `{name}@canary` and `canary--{name}.localhost` what the alias names; without, it is the alias
    /// `live`.
    invocations [Open] GET "/function/{name}" CallFunction {
        /// the function: `NAME`, or `NAME.NAMESPACE`
        name: FunctionId
    } () => OK () "what the function answered; header x-fn-version is the version that did"
    header "x-fn-affinity" "any word: the same one goes to the same version of those that share an alias"
    fails
        FunctionNotFound,
        TooLarge,
        Throttled "with Retry-After",
        QuotaExceeded,
        FunctionError, InvalidResponse, FunctionCrashed, FunctionOutOfMemory, BootFailed, RestoreFailed, SnapshotLost,
        NoCapacity "with Retry-After",
        Unavailable "with Retry-After",
        FunctionTimeout;

    /// Call a function at a path
    ///
    /// Any method. The path reaches the function byte for byte.
    invocations [Open] GET "/function/{name}/{path}" CallFunctionBelow {
        /// the function: `NAME`, or `NAME.NAMESPACE`
        name: FunctionId,
        /// the path below it; may contain slashes
        path: String
    } () => OK () "what the function answered"
    fails FunctionNotFound, FunctionError, FunctionTimeout;

    /// Call a function later
    ///
    /// Any method. The response comes once the call is stored durably. The call is then run at least once, and retried
    /// if it fails (docs/reference/async.md). At most 1 MiB of body.
    invocations [Open] POST "/async-function/{name}" CallLater {
        /// the function: `NAME`, or `NAME.NAMESPACE`
        name: FunctionId
    } () => ACCEPTED AcceptedCall "it is kept; headers x-fn-async-id, location"
    header "idempotency-key" "1 to 200 visible characters: sent again with it, the call is run once"
    header "x-callback-url" "where to post what comes of it"
    fails
        BadRequest,
        FunctionNotFound,
        Conflict "the idempotency key was another request's",
        TooLarge,
        Throttled "its queue is full",
        QuotaExceeded,
        Unavailable "nothing was kept, or it is not known";

    /// Call a function later at a path
    invocations [Open] POST "/async-function/{name}/{path}" CallLaterBelow {
        /// the function: `NAME`, or `NAME.NAMESPACE`
        name: FunctionId,
        /// the path below it; may contain slashes
        path: String
    } () => ACCEPTED AcceptedCall "it is kept"
    fails FunctionNotFound;

    /// Get the result of an asynchronous call
    ///
    /// Whoever knows its id may ask. Header x-fn-async-state: `queued`, `running`, `done`, `dead`. Responses are kept
    /// for a day.
    invocations [Open] GET "/async-results/{id}" ReadCallResult {
        /// the call
        id: CallId;
        /// seconds to wait for its end, at most 30
        wait: u64
    } () => OK () "what the function answered, with its own status and headers"
    or ACCEPTED () "it has not ended"
    fails
        NotFound "no such call, or it is forgotten",
        TooLarge "the answer's body was over 1 MiB and is not kept",
        FunctionError "of a call that was given up: the error of its last attempt",
        Expired "of a call that was given up",
        FunctionTimeout "of a call that was given up";

    /// The gateway's metrics
    ///
    /// For Prometheus. OpenMetrics, with exemplars, if `Accept` names `application/openmetrics-text`.
    platform [Reader Platform] GET "/metrics" ReadMetrics {} () => OK () "Prometheus' text format, or OpenMetrics"
    sends "text/plain" String
    fails;

    /// Whether the gateway is alive
    platform [Open] GET "/healthz" ReadHealth {} () => OK () "it is"
    fails;

    /// Whether the gateway can serve
    platform [Open] GET "/readyz" ReadReadiness {} () => OK () "the scheduler answers"
    fails Unavailable "it does not";
}

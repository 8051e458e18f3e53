//! Names of the HTTP headers the platform reads and writes. All lower case, as HTTP/2 and `http::HeaderName` want them.

use http::HeaderMap;
use http::header::AUTHORIZATION;

/// The invocation's id; taken from the client when it sends a usable one, else made by the gateway.
pub const REQUEST_ID: &str = "x-request-id";
/// Answer: the start kind of the invocation, see [`crate::api::StartKind`].
pub const START: &str = "x-fn-start";
/// Answer: the instance that served the invocation. To the function: which instance it is, the same in all its requests and
/// different in every copy.
pub const INSTANCE: &str = "x-fn-instance";
/// Answer: phases of the invocation with their durations in milliseconds (W3C Server-Timing).
pub const SERVER_TIMING: &str = "server-timing";
/// W3C trace context.
pub const TRACEPARENT: &str = "traceparent";
/// To a function's after-restore hook: which generators of random numbers in its process were reseeded before it ran,
/// as words with commas between them.
pub const RESEEDED: &str = "x-fn-reseeded";
/// To the function: when the invocation times out, in milliseconds since the Unix epoch.
pub const DEADLINE_MS: &str = "x-fn-deadline-ms";
/// To the function: `http`, or `event` where the body is the event itself.
pub const INVOCATION: &str = "x-fn-invocation";
/// To the function and to callbacks: the asynchronous invocation, the same in all its attempts. Answer: the one that was accepted.
pub const ASYNC_ID: &str = "x-fn-async-id";
/// To the function: which attempt at an asynchronous invocation this is, from 1.
pub const ASYNC_ATTEMPT: &str = "x-fn-async-attempt";
/// Of an asynchronous invocation's result: where it stands, see [`crate::asynchronous::CallState`].
pub const ASYNC_STATE: &str = "x-fn-async-state";
/// To callbacks: the status that the function answered with.
pub const FUNCTION_STATUS: &str = "x-fn-status";
/// From a client: where to post what comes of its asynchronous invocation.
pub const CALLBACK_URL: &str = "x-callback-url";
/// From a client: a word of its choice; an asynchronous invocation that is sent again with it is run once.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// From the runtime: the handler threw; the body is the error as JSON.
pub const FUNCTION_ERROR: &str = "x-fn-function-error";
/// Gateway and scheduler, with the admin key only: start a fresh instance this way (`booted` or `restored`) instead of
/// taking whatever is best. For benchmarks and for the curious.
pub const FORCE_START: &str = "x-fn-force-start";
/// Between roles: the platform error code of an answer that the function did not give.
pub const PLATFORM_ERROR: &str = "x-rekindle-error";
/// To a worker with an invocation: milliseconds left for it. From a worker with a function's answer: the same for the rest of it. A deadline by the
/// clock would not do, as clocks of hosts differ, and the function's time begins when its instance is ready.
pub const TIME_LEFT_MS: &str = "x-rekindle-time-left-ms";
/// To a worker with an invocation: the lease it is sent under, a [`crate::lease::LeaseMark`].
pub const LEASE: &str = "x-rekindle-lease";
/// From a scheduler that does not lead: nothing was done, another may be asked.
pub const STANDBY: &str = "x-rekindle-standby";
/// Between roles: the cluster's secret.
pub const CLUSTER_TOKEN: &str = "x-rekindle-token";
/// The path prefix under which a runtime answers the platform itself (snapshot hooks); never reachable from outside.
pub const HOOK_PREFIX: &str = "/.rekindle/";

/// The token that a request proves itself with: `Authorization: Bearer TOKEN`.
pub fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

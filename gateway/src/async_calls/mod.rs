//! Asynchronous invocations. `accept` brings a request to the scheduler's store and answers 202. `runner` claims due
//! calls from there, runs them like any invocation, and reports the outcomes. `callback` posts results to addresses
//! that `targets` permits. `result` returns the result of a call. A gateway keeps nothing of them: what it held when it
//! was killed goes to another after some seconds.

mod accept;
mod callback;
mod result;
mod runner;
mod targets;

pub(crate) use accept::{AsyncInvocation, accept};
pub(crate) use callback::Callbacks;
pub(crate) use result::result;
pub(crate) use runner::Runner;
pub use targets::CallbackAllow;
pub(crate) use targets::Targets;

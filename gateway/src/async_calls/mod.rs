//! Asynchronous invocations. `accept` brings a request to the scheduler's store and answers 202; `runner` takes what is due from there, runs it
//! as any invocation is run, and tells what came of it; `callback` posts results to addresses that `targets` lets through; `result` answers
//! what came of one. A gateway keeps nothing of them: what it held when it was killed goes to another after some seconds.

mod accept;
mod callback;
mod result;
mod runner;
mod targets;

pub(crate) use accept::{Asked, accept};
pub(crate) use callback::Callbacks;
pub(crate) use result::result;
pub(crate) use runner::Runner;
pub use targets::CallbackAllow;
pub(crate) use targets::Targets;

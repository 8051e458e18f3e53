//! Which namespaces workers have functions of, so that a worker that somebody has taken over calls nothing in others.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rekindle_identity::Caller;
use rekindle_wire::{ApiError, ErrorCode, FunctionId, Namespace, WorkerId};

use crate::scheduler::SchedulerClient;

/// For how long an answer counts.
const KNOWN_FOR: Duration = Duration::from_secs(60);
/// For how long it counts at most while the scheduler does not answer, or does not know: as long as an invocation that
/// was under way may take.
const GOOD_FOR: Duration = Duration::from_secs(900);
/// Number of answers that are kept.
const KNOWN_MAX: usize = 8_192;

/// What the scheduler has said lately: when a worker had a function of a namespace.
#[derive(Debug, Default)]
pub(super) struct Hosted(Mutex<HashMap<(WorkerId, Namespace), Instant>>);

impl Hosted {
    /// Refuses a call that a worker cannot have come by. Without certificates nobody knows which worker asks.
    ///
    /// # Errors
    /// `forbidden`, or the scheduler's if it does not answer and has not before.
    pub(super) async fn check(
        &self,
        scheduler: &SchedulerClient,
        worker: &Caller,
        caller: &FunctionId,
    ) -> Result<(), ApiError> {
        let Caller::Member(peer) = worker else {
            return Ok(());
        };
        let unknown = |_| ApiError::new(ErrorCode::Unauthorized, format!("the {peer} has no id of a worker"));
        let id: WorkerId = peer.name.parse().map_err(unknown)?;
        let namespace: Namespace = caller.namespace().parse().unwrap_or_default();
        let asked = (id, namespace);
        let known = self.0.lock().get(&asked).copied();
        if known.is_some_and(|at| at.elapsed() < KNOWN_FOR) {
            return Ok(());
        }
        match scheduler.hosts(asked.0.clone(), asked.1.clone()).await {
            Ok(true) => {
                let mut all = self.0.lock();
                if all.len() >= KNOWN_MAX {
                    all.clear();
                }
                all.insert(asked, Instant::now());
                Ok(())
            }
            Ok(false) => {
                self.0.lock().remove(&asked);
                tracing::warn!(worker = %asked.0, %caller, "a worker calls for a function that it cannot run");
                Err(ApiError::new(
                    ErrorCode::Forbidden,
                    format!(
                        "the {peer} runs no function of the namespace {}: its call is refused",
                        asked.1
                    ),
                ))
            }
            // What was so before goes on, as after a change of the scheduler's leader.
            Err(_) if known.is_some_and(|at| at.elapsed() < GOOD_FOR) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

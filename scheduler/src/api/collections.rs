//! Removes unneeded objects from the object store.

use rekindle_wire::api::{CollectRequest, Collected};
use rekindle_wire::error::chain;
use rekindle_wire::interface::Call;
use rekindle_wire::interface::users::Collect;
use rekindle_wire::{ApiError, ErrorCode};

use crate::collection::{self, CollectionError};
use crate::refusal::{Refused, from_store};
use crate::state::Scheduler;

pub(super) async fn collect(scheduler: Scheduler, call: Call<Collect>) -> Result<Collected, Refused> {
    let CollectRequest { dry_run, take_over } = call.body;
    let here = scheduler.clone();
    // In a task of its own: it must not stop half-way because the client went away.
    let task = scheduler
        .tasks
        .spawn(async move { collection::collect(&here, dry_run, take_over).await });
    let done = task.await.map_err(|_| {
        ApiError::new(
            ErrorCode::Internal,
            "the collection was given up: see the scheduler's log",
        )
    })?;
    done.map_err(refused)
}

fn refused(error: CollectionError) -> ApiError {
    match error {
        CollectionError::UnderWay | CollectionError::Foreign(_) => {
            ApiError::new(ErrorCode::Conflict, error.to_string())
        }
        CollectionError::Store(error) => from_store(error),
        CollectionError::Objects(_) => ApiError::new(
            ErrorCode::Unavailable,
            format!("{}: check that the object store answers, and try again", chain(&error)),
        ),
    }
}

//! The audit log: every change that somebody asks for over the API, with who asked, and what came of it. An entry is
//! written when the change has ended, before its caller is answered.

pub(crate) mod digest;

use std::time::Duration;

use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use parking_lot::Mutex;
use rekindle_wire::access::Caller;
use rekindle_wire::api::AuditEntry;
use rekindle_wire::headers::{PLATFORM_ERROR, REQUEST_ID};
use rekindle_wire::interface::users::{Touched, touched};
use rekindle_wire::{ApiError, ErrorCode, Namespace};

use crate::clock::unix_ms;
use crate::state::Scheduler;

/// Number of entries that are kept.
const KEPT_MAX: u64 = 100_000;
/// How long entries are kept, in milliseconds: 400 days.
const KEPT_MS: i64 = 400 * 86_400_000;
/// Interval between two removals.
const TRIM_EVERY: Duration = Duration::from_secs(3_600);
/// Longest object and request id that an entry has, in characters.
const TEXT_MAX: usize = 300;

tokio::task_local! {
    /// What the change in this task is about, where its path does not say.
    static ABOUT: Mutex<Option<(Option<Namespace>, String)>>;
}

/// Says what a change is about, where its path does not.
pub(crate) fn note(namespace: Option<&Namespace>, object: String) {
    // Calls that change nothing have no entry.
    let _no_change = ABOUT.try_with(|about| *about.lock() = Some((namespace.cloned(), object)));
}

/// A change that is asked for.
pub(crate) struct Change {
    actor: String,
    request_id: String,
    touched: Touched,
}

impl Change {
    /// The change that a request asks for, if any.
    pub(crate) fn of(request: &Request) -> Option<Self> {
        let touched = touched(request.method(), request.uri().path())?;
        let headers = request.headers();
        let request_id = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
        let caller = Caller::of(headers).map(|caller| caller.name().to_owned());
        Some(Self {
            actor: caller.unwrap_or_else(|_| "unknown".to_owned()),
            request_id: cut(request_id.unwrap_or_default()),
            touched,
        })
    }

    /// Makes the change and writes it down, though its caller leaves.
    pub(crate) async fn make(
        self,
        scheduler: &Scheduler,
        answering: impl Future<Output = Response> + Send + 'static,
    ) -> Response {
        let here = scheduler.clone();
        let made = scheduler.tasks.spawn(async move {
            let work = async {
                let answer = answering.await;
                (answer, ABOUT.with(|about| about.lock().take()))
            };
            let (answer, about) = ABOUT.scope(Mutex::new(None), work).await;
            let entry = self.entry(&answer, about);
            let (action, object, actor) = (entry.action.clone(), entry.object.clone(), entry.actor.clone());
            if let Err(error) = here.store.append_audit(entry).await {
                let error = &error as &dyn std::error::Error;
                tracing::error!(action, object, actor, error, "a change is not in the audit log");
            }
            answer
        });
        made.await.unwrap_or_else(|_| {
            ApiError::new(ErrorCode::Internal, "the change broke off: look whether it was made").into_response()
        })
    }

    fn entry(self, answer: &Response, about: Option<(Option<Namespace>, String)>) -> AuditEntry {
        let Touched {
            name,
            mut namespace,
            mut object,
        } = self.touched;
        if let Some((of, what)) = about {
            namespace = of;
            object = what;
        }
        let code = answer.headers().get(PLATFORM_ERROR).and_then(|code| code.to_str().ok());
        let outcome = match (code, answer.status()) {
            (Some(code), _) => code.to_owned(),
            (None, status) if status.is_success() => "ok".to_owned(),
            (None, status) => status.as_str().to_owned(),
        };
        AuditEntry {
            number: 0,
            unix_ms: unix_ms(),
            actor: self.actor,
            namespace,
            action: name,
            object: cut(&object),
            outcome,
            request_id: self.request_id,
            previous: String::new(),
            hash: String::new(),
        }
    }
}

fn cut(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(TEXT_MAX).collect()
}

/// Removes the oldest entries from time to time. Runs until dropped.
pub(crate) async fn run(scheduler: Scheduler) {
    loop {
        match scheduler.store.trim_audit(KEPT_MAX, unix_ms() - KEPT_MS).await {
            Ok(0) => {}
            Ok(removed) => tracing::info!(removed, "the oldest entries of the audit log were removed"),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "the audit log cannot be trimmed; trying again");
            }
        }
        tokio::time::sleep(TRIM_EVERY).await;
    }
}

//! The audit log: every change that somebody asks for over the API, with who asked, and what came of it. An entry is
//! written when the change has ended, before its caller is answered.

pub(crate) mod budget;
pub(crate) mod digest;

use std::time::Duration;

use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use parking_lot::Mutex;
use rekindle_wire::access::Caller;
use rekindle_wire::api::AuditEntry;
use rekindle_wire::headers::{PLATFORM_ERROR, REQUEST_ID};
use rekindle_wire::interface::users::{Touched, touched};
use rekindle_wire::{ApiError, ErrorCode, Namespace};

use crate::clock::unix_ms;
use crate::state::Scheduler;
use budget::LeftOut;

/// Number of entries that are kept. One namespace's keys need three days of nothing else to write so
/// many: two changes a second, and a revocation for each key that is made.
const KEPT_MAX: u64 = 1_000_000;
/// How long entries are kept, in milliseconds: 400 days.
const KEPT_MS: i64 = 400 * 86_400_000;
/// Interval between two removals.
const TRIM_EVERY: Duration = Duration::from_secs(3_600);
/// Interval at which it is told how many refused changes have no entry of their own.
const TELL_EVERY: Duration = Duration::from_secs(60);
/// The action of such an entry.
const LEFT_OUT: &str = "refused_changes";
/// Longest object and request id that an entry has, in characters.
const TEXT_MAX: usize = 300;
/// The outcome of a change that was made.
const OK: &str = "ok";
/// What takes nothing from the budget of changes: it has to be possible when a leaked key uses that up. Each key is
/// revoked once, each rule removed once, and to make one takes from the budget.
const FREE: [&str; 2] = ["revoke_key", "remove_rule"];

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
    /// `None` if it cannot be read.
    caller: Option<Caller>,
    request_id: String,
    touched: Touched,
}

impl Change {
    /// The change that a request asks for, if any.
    pub(crate) fn of(request: &Request) -> Option<Self> {
        let touched = touched(request.method(), request.uri().path())?;
        let headers = request.headers();
        let request_id = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
        Some(Self {
            caller: Caller::of(headers).ok(),
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
        let payer = self.caller.clone().filter(|_| !FREE.contains(&&*self.touched.name));
        if let Some(caller) = &payer
            && let Err(refused) = scheduler.audit.take(caller, scheduler.now())
        {
            return refused.into_response();
        }
        let here = scheduler.clone();
        let made = scheduler.tasks.spawn(async move {
            let work = async {
                let answer = answering.await;
                (answer, ABOUT.with(|about| about.lock().take()))
            };
            let (answer, about) = ABOUT.scope(Mutex::new(None), work).await;
            if let Some(payer) = &payer
                && matches!(answer.status(), StatusCode::FORBIDDEN | StatusCode::NOT_FOUND)
            {
                here.audit.give_back(payer);
            }
            let caller = self.caller.clone();
            let entry = self.entry(&answer, about);
            if let Some(caller) = caller
                && entry.outcome != OK
                && !here.audit.has_entry(&caller, here.now())
            {
                return answer;
            }
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
            (None, status) if status.is_success() => OK.to_owned(),
            (None, status) => status.as_str().to_owned(),
        };
        // Nobody writes into the log of a namespace in which they may do nothing.
        if let Some(caller) = &self.caller
            && outcome != OK
            && namespace.as_ref().is_none_or(|namespace| !caller.meets(namespace))
        {
            if let Some(elsewhere) = &namespace {
                object = format!("{object} in {elsewhere}");
            }
            namespace = caller.namespace();
        }
        let actor = self.caller.as_ref().map_or("unknown", Caller::name).to_owned();
        AuditEntry {
            request_id: self.request_id,
            ..entry(actor, namespace, name, cut(&object), outcome)
        }
    }
}

/// An entry of now, before it has its place in the log.
fn entry(actor: String, namespace: Option<Namespace>, action: String, object: String, outcome: String) -> AuditEntry {
    AuditEntry {
        number: 0,
        unix_ms: unix_ms(),
        actor,
        namespace,
        action,
        object,
        outcome,
        request_id: String::new(),
        previous: String::new(),
        hash: String::new(),
    }
}

fn cut(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(TEXT_MAX).collect()
}

/// Tells how many changes have no entry, and removes the oldest entries, from time to time. Runs until dropped.
pub(crate) async fn run(scheduler: Scheduler) {
    let every = TRIM_EVERY.as_secs() / TELL_EVERY.as_secs();
    for turn in (0..every).cycle() {
        tell_left_out(&scheduler).await;
        if turn == 0 {
            trim(&scheduler).await;
        }
        tokio::time::sleep(TELL_EVERY).await;
    }
}

async fn tell_left_out(scheduler: &Scheduler) {
    for LeftOut {
        actor,
        namespace,
        count,
    } in scheduler.audit.left_out(scheduler.now())
    {
        tracing::warn!(
            actor,
            count,
            "a key asks for many changes that are refused: look whose it is"
        );
        let entry = entry(
            actor,
            namespace,
            LEFT_OUT.to_owned(),
            format!("{count} more"),
            "refused".to_owned(),
        );
        if let Err(error) = scheduler.store.append_audit(entry).await {
            let error = &error as &dyn std::error::Error;
            tracing::error!(count, error, "refused changes are not in the audit log");
        }
    }
}

async fn trim(scheduler: &Scheduler) {
    match scheduler.store.trim_audit(KEPT_MAX, unix_ms() - KEPT_MS).await {
        Ok(0) => {}
        Ok(removed) => tracing::info!(removed, "the oldest entries of the audit log were removed"),
        Err(error) => {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "the audit log cannot be trimmed; trying again");
        }
    }
}

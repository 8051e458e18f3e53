//! The audit log: every change that somebody asks for over the API, with who asked, and what came of it. An entry is
//! written when the change has ended, before its caller is answered.

pub(crate) mod budget;
pub(crate) mod digest;

use std::time::Duration;

use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use parking_lot::Mutex;
use rekindle_wire::access::{AccessRole, Caller, Grant, Scope};
use rekindle_wire::api::AuditEntry;
use rekindle_wire::clock::unix_ms;
use rekindle_wire::headers::{PLATFORM_ERROR, REQUEST_ID};
use rekindle_wire::interface::users::{Touched, needed, touched};
use rekindle_wire::{ApiError, ErrorCode, Namespace};

use crate::state::Scheduler;
use budget::OmittedEntries;

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
/// What takes nothing from the budget of changes: it has to be possible when a leaked key uses that up. Each key is
/// revoked once, each rule removed once, and to make one takes from the budget.
const FREE: [&str; 2] = ["revoke_key", "remove_rule"];

tokio::task_local! {
    /// What the change in this task is about, where its path does not say, and what it was taken from.
    static ABOUT: Mutex<AuditSubject>;
}

/// What came of a change. An entry has it as text.
enum ChangeOutcome {
    Succeeded,
    /// The code of the error, or the status of an answer that has none.
    Failed(String),
}

impl ChangeOutcome {
    fn of(answer: &Response) -> Self {
        let code = answer.headers().get(PLATFORM_ERROR).and_then(|code| code.to_str().ok());
        match (code, answer.status()) {
            (Some(code), _) => Self::Failed(code.to_owned()),
            (None, status) if status.is_success() => Self::Succeeded,
            (None, status) => Self::Failed(status.as_str().to_owned()),
        }
    }

    fn has_failed(&self) -> bool {
        matches!(self, Self::Failed(_))
    }

    fn into_text(self) -> String {
        match self {
            Self::Succeeded => "ok".to_owned(),
            Self::Failed(code) => code,
        }
    }
}

#[derive(Default)]
struct AuditSubject {
    what: Option<(Option<Namespace>, String)>,
    /// Whether it was taken from the budgets of what admits it, or from none.
    is_charged: bool,
    /// The namespace from whose budget it was taken.
    charged: Option<Namespace>,
}

/// Says what a change is about, where its path does not.
pub(crate) fn note(namespace: Option<&Namespace>, object: String) {
    // Calls that change nothing have no entry.
    let _no_change = ABOUT.try_with(|about| about.lock().what = Some((namespace.cloned(), object)));
}

/// Takes the change in this task from the budgets of what gives its caller the role, where only its content says what
/// it is about. Call it before anything is changed.
///
/// # Errors
/// `too_many_requests` if nothing is left of one.
pub(crate) fn charge(scheduler: &Scheduler, caller: &Caller, role: AccessRole, scope: &Scope) -> Result<(), ApiError> {
    let charged = ABOUT.try_with(|about| {
        let mut about = about.lock();
        let grant = admitting(caller, role, scope).filter(|_| !about.is_charged);
        let Some(grant) = grant else { return Ok(()) };
        scheduler.audit.take_for(grant, scheduler.now())?;
        (about.is_charged, about.charged) = (true, grant.scope.namespace());
        Ok(())
    });
    // Calls that change nothing take nothing.
    charged.unwrap_or(Ok(()))
}

/// The grant that lets a caller make a change there, or in a part of it.
fn admitting<'a>(caller: &'a Caller, role: AccessRole, scope: &Scope) -> Option<&'a Grant> {
    if !caller.is_identity() {
        return caller.grants.first();
    }
    let in_part = || {
        let mut all = caller.grants.iter();
        all.find(|grant| grant.role.includes(role) && scope.covers(&grant.scope))
    };
    caller.giving(role, scope).next().or_else(in_part)
}

pub(crate) struct Change {
    /// `None` if it cannot be read.
    caller: Option<Caller>,
    request_id: String,
    touched: Touched,
    /// The role that it needs and where, as far as its path says.
    needed: Option<(AccessRole, Scope)>,
}

impl Change {
    /// The change that a request asks for, if any.
    pub(crate) fn of(request: &Request) -> Option<Self> {
        let (method, uri) = (request.method(), request.uri());
        let touched = touched(method, uri.path())?;
        let needed = needed(method, uri.path(), uri.query()).ok().flatten();
        let headers = request.headers();
        let request_id = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
        Some(Self {
            caller: Caller::of(headers).ok(),
            request_id: cut(request_id.unwrap_or_default()),
            touched,
            needed: needed.and_then(|needed| Some((needed.role, needed.scope?))),
        })
    }

    /// Makes the change and writes it down, though its caller leaves.
    pub(crate) async fn make(
        self,
        scheduler: &Scheduler,
        answering: impl Future<Output = Response> + Send + 'static,
    ) -> Response {
        let about = match self.take(scheduler) {
            Ok(about) => about,
            Err(refused) => return refused.into_response(),
        };
        let here = scheduler.clone();
        let made = scheduler.tasks.spawn(async move {
            let work = async {
                let answer = answering.await;
                (answer, ABOUT.with(|about| std::mem::take(&mut *about.lock())))
            };
            let (answer, about) = ABOUT.scope(Mutex::new(about), work).await;
            if let Some(payer) = &about.charged
                && matches!(answer.status(), StatusCode::FORBIDDEN | StatusCode::NOT_FOUND)
            {
                here.audit.give_back(payer);
            }
            let caller = self.caller.clone();
            let outcome = ChangeOutcome::of(&answer);
            let has_failed = outcome.has_failed();
            let entry = self.entry(outcome, about.what);
            if let Some(caller) = caller
                && has_failed
                && !here.audit.has_entry(&caller, entry.namespace.as_ref(), here.now())
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
            ApiError::new(
                ErrorCode::Internal,
                "the change was interrupted: check whether it took effect",
            )
            .into_response()
        })
    }

    /// Takes the change from the budgets of its caller, and of what admits it as far as that is known.
    fn take(&self, scheduler: &Scheduler) -> Result<AuditSubject, ApiError> {
        let payer = self.caller.as_ref().filter(|caller| !caller.is_platform());
        let Some(caller) = payer.filter(|_| !FREE.contains(&&*self.touched.name)) else {
            return Ok(AuditSubject {
                is_charged: true,
                ..AuditSubject::default()
            });
        };
        let grant = match &self.needed {
            Some((role, scope)) => admitting(caller, *role, scope),
            // What admits it is known once its content is.
            None if caller.is_identity() => None,
            None => caller.grants.first(),
        };
        let namespace = self.touched.namespace.as_ref();
        scheduler.audit.take(caller, grant, namespace, scheduler.now())?;
        Ok(AuditSubject {
            what: None,
            is_charged: grant.is_some(),
            charged: grant.and_then(|grant| grant.scope.namespace()),
        })
    }

    fn entry(self, outcome: ChangeOutcome, about: Option<(Option<Namespace>, String)>) -> AuditEntry {
        let Touched {
            name,
            mut namespace,
            mut object,
        } = self.touched;
        if let Some((of, what)) = about {
            namespace = of;
            object = what;
        }
        // Nobody writes into the log of a namespace in which they may do nothing.
        if let Some(caller) = &self.caller
            && outcome.has_failed()
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
            ..entry(actor, namespace, name, cut(&object), outcome.into_text())
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
    for OmittedEntries {
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

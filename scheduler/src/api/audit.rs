//! The audit log.

use rekindle_wire::access::{AccessRole, Caller, Scope};
use rekindle_wire::api::{AUDIT_PAGE_MAX, AuditPage};
use rekindle_wire::interface::Call;
use rekindle_wire::interface::users::ReadAudit;
use rekindle_wire::{ApiError, ErrorCode, Namespace};

use crate::refusal::{Refused, from_store};
use crate::state::Scheduler;
use crate::store::AuditQuery;

pub(super) async fn read(scheduler: Scheduler, call: Call<ReadAudit>) -> Result<AuditPage, Refused> {
    let caller = Caller::of(&call.head.headers)?;
    let namespace = log_namespace(&caller, call.at.of)?;
    let wanted = AuditQuery {
        after: call.at.after.unwrap_or(0),
        since_unix_ms: call.at.since_unix_ms.unwrap_or(0),
        namespace,
        limit: call.at.limit.unwrap_or(AUDIT_PAGE_MAX).clamp(1, AUDIT_PAGE_MAX),
    };
    scheduler.store.audit(&wanted).await.map_err(from_store)
}

/// The namespace whose log is read. `None` for the platform's.
fn log_namespace(caller: &Caller, named: Option<Namespace>) -> Result<Option<Namespace>, ApiError> {
    let mut own = caller.namespaces(AccessRole::Admin);
    let namespace = match (named, &mut own) {
        (Some(named), _) => Some(named),
        (None, None) => None,
        (None, Some(own)) if own.len() > 1 => {
            let all: Vec<_> = own.iter().map(Namespace::as_str).collect();
            return Err(ApiError::new(
                ErrorCode::BadRequest,
                format!(
                    "{} is an admin of several namespaces: name one of {} with `fn audit --of NAME` (?of=NAME)",
                    caller.name(),
                    all.join(", ")
                ),
            ));
        }
        // Of one function alone there is no log.
        (None, Some(own)) => own
            .pop_first()
            .or_else(|| caller.widest(AccessRole::Admin).and_then(Scope::namespace)),
    };
    let scope = namespace.clone().map_or(Scope::Platform, Scope::Namespace);
    caller.check(AccessRole::Admin, &scope)?;
    Ok(namespace)
}

#[cfg(test)]
mod tests {
    use rekindle_wire::access::{Grant, RuleId};

    use super::*;

    fn of(scopes: &[&str]) -> Caller {
        let grants = scopes.iter().map(|scope| Grant {
            rule: Some(RuleId::generate()),
            role: AccessRole::Admin,
            scope: scope.parse().unwrap(),
        });
        Caller::with_identity("oidc:ada".to_owned(), None, grants.collect())
    }

    #[test]
    fn the_log_is_that_of_the_namespace_that_the_request_names() {
        let named = |name: &str| Some(name.parse().unwrap());
        let read = |scopes: &[&str], name| log_namespace(&of(scopes), name).map_err(|error| error.code);
        assert_eq!(read(&["*"], None), Ok(None));
        assert_eq!(read(&["*"], named("team")), Ok(named("team")));
        assert_eq!(read(&["*.team"], None), Ok(named("team")));
        // A rule of another namespace's admin does not change whose it is.
        assert_eq!(read(&["*.evil", "*.team"], None), Err(ErrorCode::BadRequest));
        assert_eq!(read(&["*.evil", "*.team"], named("team")), Ok(named("team")));
        assert_eq!(read(&["hello.evil", "*.team"], None), Ok(named("team")));
        assert_eq!(read(&["*.team"], named("other")), Err(ErrorCode::Forbidden));
        assert_eq!(read(&["hello.team"], None), Err(ErrorCode::Forbidden));
    }
}

//! The audit log.

use rekindle_wire::access::{AccessRole, Caller, Scope};
use rekindle_wire::api::{AUDIT_PAGE_MAX, AuditPage};
use rekindle_wire::interface::Call;
use rekindle_wire::interface::users::ReadAudit;

use crate::refusal::{Refused, from_store};
use crate::state::Scheduler;
use crate::store::WantedAudit;

pub(super) async fn read(scheduler: Scheduler, call: Call<ReadAudit>) -> Result<AuditPage, Refused> {
    let caller = Caller::of(&call.head.headers)?;
    // Of several namespaces, the one of the oldest rule.
    let namespace = caller.widest(AccessRole::Admin).and_then(Scope::namespace);
    // Of one function alone there is no log.
    let scope = namespace.clone().map_or(Scope::Platform, Scope::Namespace);
    caller.check(AccessRole::Admin, &scope)?;
    let wanted = WantedAudit {
        after: call.at.after.unwrap_or(0),
        since_unix_ms: call.at.since_unix_ms.unwrap_or(0),
        namespace,
        limit: call.at.limit.unwrap_or(AUDIT_PAGE_MAX).clamp(1, AUDIT_PAGE_MAX),
    };
    scheduler.store.audit(&wanted).await.map_err(from_store)
}

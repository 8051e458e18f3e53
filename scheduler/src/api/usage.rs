//! What namespaces have used: gateways report it, users read it.

use rekindle_wire::access::{AccessRole, Caller, Scope};
use rekindle_wire::api::{USAGE_DAYS_MAX, USAGE_LINES_MAX, UsageLine};
use rekindle_wire::clock::unix_s;
use rekindle_wire::interface::Call;
use rekindle_wire::interface::scheduler::ReportUsage;
use rekindle_wire::interface::users::ReadUsage;
use rekindle_wire::{ApiError, ErrorCode};

use crate::clock::day_of;
use crate::metering;
use crate::refusal::{Refused, from_store};
use crate::state::Scheduler;
use crate::store::UsageQuery;

/// How many days are shown if nothing else is said.
const DAYS: u32 = 7;

pub(super) async fn report(scheduler: Scheduler, call: Call<ReportUsage>) -> Result<(), Refused> {
    metering::count(&scheduler, &call.body).await.map_err(from_store)
}

pub(super) async fn read(scheduler: Scheduler, call: Call<ReadUsage>) -> Result<Vec<UsageLine>, Refused> {
    let at = call.at;
    let days = at.days.unwrap_or(DAYS);
    let bad = |message: String| Err(ApiError::new(ErrorCode::BadRequest, message));
    if !(1..=USAGE_DAYS_MAX).contains(&days) {
        return bad(format!(
            "usage is kept for {USAGE_DAYS_MAX} days: ask for 1 to {USAGE_DAYS_MAX}"
        ));
    }
    let namespace = at.namespace.unwrap_or_default();
    let mut from_day = day_of(unix_s()).saturating_sub(days - 1);
    // Of a namespace that was removed there is usage too, which is not for keys of a later one of its name.
    if !Caller::of(&call.head.headers)?.has(AccessRole::Reader, &Scope::Platform) {
        let made = scheduler.store.namespace_made(&namespace).await.map_err(from_store)?;
        from_day = from_day.max(day_of(made.unwrap_or(0)));
    }
    let wanted = UsageQuery {
        namespace,
        function: at.function,
        from_day,
        by: at.by.unwrap_or_default(),
        limit: USAGE_LINES_MAX + 1,
    };
    let lines = scheduler.store.usage(&wanted).await.map_err(from_store)?;
    match lines.len() > USAGE_LINES_MAX {
        true => bad(format!(
            "there are more than {USAGE_LINES_MAX} lines: ask for fewer days, one function, or fewer parts (by)"
        )),
        false => Ok(lines),
    }
}

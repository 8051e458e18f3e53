//! Schedules: listed, paused, resumed, run by hand.

use rekindle_wire::FunctionId;
use rekindle_wire::api::ScheduleInfo;
use rekindle_wire::asynchronous::AcceptedCall;
use rekindle_wire::interface::Call;
use rekindle_wire::interface::users::{ListSchedules, PauseSchedule, ResumeSchedule, RunSchedule};

use super::{known, named};
use crate::refusal::Refused;
use crate::schedules;
use crate::state::Scheduler;

pub(super) async fn list(scheduler: Scheduler, call: Call<ListSchedules>) -> Result<Vec<ScheduleInfo>, Refused> {
    let namespace = known(&scheduler, call.at.namespace)?;
    let function = call.at.function.map(|name| FunctionId::new(&namespace, &name));
    schedules::list(&scheduler, namespace.as_str(), function.as_ref()).await
}

pub(super) async fn pause(scheduler: Scheduler, call: Call<PauseSchedule>) -> Result<ScheduleInfo, Refused> {
    let function = named(&scheduler, &call.at.name, call.at.namespace)?;
    schedules::pause(&scheduler, &function, &call.at.schedule, true).await
}

pub(super) async fn resume(scheduler: Scheduler, call: Call<ResumeSchedule>) -> Result<ScheduleInfo, Refused> {
    let function = named(&scheduler, &call.at.name, call.at.namespace)?;
    schedules::pause(&scheduler, &function, &call.at.schedule, false).await
}

pub(super) async fn run(scheduler: Scheduler, call: Call<RunSchedule>) -> Result<AcceptedCall, Refused> {
    let function = named(&scheduler, &call.at.name, call.at.namespace)?;
    schedules::run_now(&scheduler, &function, &call.at.schedule).await
}

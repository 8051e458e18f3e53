//! Calls about schedules.

use anyhow::Result;
use rekindle_wire::api::ScheduleInfo;
use rekindle_wire::asynchronous::AcceptedCall;
use rekindle_wire::interface::users::{ListSchedules, PauseSchedule, ResumeSchedule, RunSchedule};
use rekindle_wire::{FunctionId, ScheduleName};

use super::Client;

impl Client {
    /// The schedules of a function, or of all of the namespace.
    pub(crate) async fn schedules(&self, function: Option<&FunctionId>) -> Result<Vec<ScheduleInfo>> {
        let wanted = match function.map(FunctionId::split) {
            Some((name, namespace)) => ListSchedules {
                function: Some(name),
                namespace,
            },
            None => ListSchedules {
                function: None,
                namespace: self.other_namespace(),
            },
        };
        self.ask(&wanted).await
    }

    pub(crate) async fn pause_schedule(
        &self,
        function: &FunctionId,
        schedule: &ScheduleName,
        paused: bool,
    ) -> Result<ScheduleInfo> {
        let (name, namespace) = function.split();
        let schedule = schedule.clone();
        match paused {
            true => {
                let pause = PauseSchedule {
                    name,
                    schedule,
                    namespace,
                };
                self.ask(&pause).await
            }
            false => {
                let resume = ResumeSchedule {
                    name,
                    schedule,
                    namespace,
                };
                self.ask(&resume).await
            }
        }
    }

    pub(crate) async fn run_schedule(&self, function: &FunctionId, schedule: &ScheduleName) -> Result<AcceptedCall> {
        let (name, namespace) = function.split();
        let schedule = schedule.clone();
        self.ask(&RunSchedule {
            name,
            schedule,
            namespace,
        })
        .await
    }
}

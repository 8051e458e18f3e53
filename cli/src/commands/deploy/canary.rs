//! Follows a canary until its version has all invocations, or goes back.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rekindle_wire::api::{Canary, CanaryState, CanarySteps, VersionInfo};

use crate::client::{Client, is_passing};
use crate::show::Steps;

const POLL: Duration = Duration::from_secs(1);

/// How long a canary takes at least.
pub(super) fn duration(steps: &CanarySteps, step: Duration) -> Duration {
    step.saturating_mul(u32::try_from(steps.percents().len()).unwrap_or(u32::MAX))
}

/// Waits until the version has all invocations.
///
/// # Errors
/// If it was rolled back or replaced, or time is over.
pub(super) async fn follow(client: &Client, version: &VersionInfo, deadline: Instant, quiet: bool) -> Result<()> {
    let (name, number) = (&version.function, version.version);
    let steps = Steps::new(quiet);
    let mut shown = None;
    loop {
        let detail = match client.function(name).await {
            // It goes on meanwhile.
            Err(error) if is_passing(&error) && Instant::now() < deadline => {
                tokio::time::sleep(POLL).await;
                continue;
            }
            asked => asked?,
        };
        // Where nothing served before, it is live at once.
        let Some(canary) = detail.canary else {
            return Ok(());
        };
        let state = match canary.to == number {
            true => canary.state,
            false => CanaryState::Replaced,
        };
        match state {
            CanaryState::Growing => {}
            CanaryState::Live => return Ok(()),
            // It was made live by hand.
            _ if detail.summary.live == Some(number) => return Ok(()),
            CanaryState::RolledBack => bail!(
                "version {number} of {name} was rolled back to version {}: {}",
                canary.from,
                canary.why.unwrap_or_default()
            ),
            CanaryState::Replaced => bail!(
                "version {number} of {name} takes over no further: another deploy, a rollback or an alias said what \
                 is live"
            ),
        }
        if shown != Some(canary.step) {
            shown = Some(canary.step);
            steps.step(format!("{name} version {number}: {}", step_line(&canary)));
        }
        if Instant::now() > deadline {
            bail!(
                "version {number} of {name} has {}% of the invocations and goes on by itself: look with `fn describe \
                 {name}`, or wait longer with --wait",
                canary.percent()
            );
        }
        tokio::time::sleep(POLL).await;
    }
}

fn step_line(canary: &Canary) -> String {
    format!(
        "{}% of the invocations, step {} of {}",
        canary.percent(),
        canary.step + 1,
        canary.steps.percents().len()
    )
}

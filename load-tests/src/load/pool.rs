//! The platform's own view while a load runs: its instances by state, a few times a second.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use http::Method;
use serde::{Deserialize, Serialize};

use super::target::Target;
use crate::client::Connection;

/// Between two looks.
pub(crate) const EVERY: Duration = Duration::from_millis(250);
/// Looks of one scenario that are kept.
const LEVELS_MAX: usize = 400_000;

/// What was there at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Level {
    /// Milliseconds since the scenario began.
    pub(crate) at_ms: f64,
    /// Instances by state; a ready one is `busy` or `idle`.
    pub(crate) instances: BTreeMap<String, u64>,
    /// Memory charged to all instances, MiB.
    pub(crate) memory_mib: f64,
    /// What the worker's metrics tell besides.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) gauges: BTreeMap<String, f64>,
}

/// Of `/v1/status`, what is looked at; its own shape, so that a platform of another revision can be watched too.
#[derive(Deserialize)]
struct Status {
    instances: Vec<Instance>,
}

#[derive(Deserialize)]
struct Instance {
    state: String,
    in_flight: u64,
    memory_bytes: u64,
}

/// Looks until `stop` says so.
pub(super) async fn watch(target: &Target, mut stop: tokio::sync::watch::Receiver<bool>) -> Vec<Level> {
    let began = Instant::now();
    let mut levels = Vec::new();
    let mut connection = None;
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = stop.wait_for(|stop| *stop) => return levels,
        }
        // One that is not answered is a gap in the plot, and no more.
        match look(target, &mut connection).await {
            Ok(level) if levels.len() < LEVELS_MAX => {
                let at_ms = began.elapsed().as_secs_f64() * 1_000.0;
                levels.push(Level { at_ms, ..level });
            }
            Ok(_) => {}
            Err(_) => connection = None,
        }
    }
}

async fn look(target: &Target, kept: &mut Option<Connection>) -> Result<Level> {
    let connection = match kept {
        Some(connection) => connection,
        None => kept.insert(Connection::open(target.port).await?),
    };
    let authorization = format!("Bearer {}", target.key);
    let headers = [("authorization", authorization.as_str())];
    let answer = connection.call(Method::GET, "/v1/status", &headers).await?;
    if !answer.status.is_success() {
        bail!("/v1/status: {}: {}", answer.status, answer.text());
    }
    let status: Status = serde_json::from_slice(&answer.body).context("/v1/status is not what it was")?;
    Ok(level(&status.instances))
}

fn level(instances: &[Instance]) -> Level {
    let mut out = Level::default();
    let mut memory = 0;
    for instance in instances {
        let state = match (instance.state.as_str(), instance.in_flight) {
            ("ready", 0) => "idle",
            ("ready", _) => "busy",
            (other, _) => other,
        };
        *out.instances.entry(state.to_owned()).or_default() += 1;
        memory += instance.memory_bytes >> 10;
    }
    out.memory_mib = f64::from(u32::try_from(memory).unwrap_or(u32::MAX)) / 1024.0;
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_instances_are_busy_or_idle_and_other_states_are_told_as_they_are() {
        let instance = |state: &str, in_flight| Instance {
            state: state.to_owned(),
            in_flight,
            memory_bytes: 3 << 20,
        };
        let level = level(&[
            instance("ready", 0),
            instance("ready", 1),
            instance("ready", 2),
            instance("parked", 0),
        ]);
        let counted: Vec<(&str, u64)> = level.instances.iter().map(|(k, v)| (k.as_str(), *v)).collect();
        assert_eq!(counted, [("busy", 2), ("idle", 1), ("parked", 1)]);
        assert_eq!(level.memory_mib, 12.0);
    }
}

//! The platform's own view while a load runs: its instances by state, a few times a second, and twice a second its
//! roles' metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use http::Method;
use serde::Deserialize;

use super::target::Target;
use super::{MEMORY, POOL, QUEUES};
use crate::client::Connection;
use crate::record::{Record, Row};

/// Interval between two samples.
const EVERY: Duration = Duration::from_millis(250);
/// Every how many samples the metrics are read too.
const METRICS_EVERY: usize = 2;
/// The metrics to read, by their name in docs/reference/metrics.md, with their names here. A role without one of them
/// leaves a gap in the plot.
const WORKER_GAUGES: [(&str, &str); 3] = [
    ("rekindle_sandboxes_ready", SANDBOXES),
    ("rekindle_templates_memory_bytes", TEMPLATES),
    ("rekindle_worker_instances_memory_bytes", INSTANCES_MEMORY),
];
const GATEWAY_GAUGES: [(&str, &str); 2] = [
    ("rekindle_gateway_in_flight", IN_FLIGHT),
    ("rekindle_gateway_waiting", WAITING),
];
const SCHEDULER_GAUGES: [(&str, &str); 1] = [("rekindle_scheduler_waiting", QUEUED)];
/// Empty sandboxes that are ready.
const SANDBOXES: &str = "empty sandboxes ready";
/// Memory of templates and images, bytes.
const TEMPLATES: &str = "templates, shared by all clones";
/// Memory charged to instances, bytes.
const INSTANCES_MEMORY: &str = "charged to instances";
/// Invocations in flight at the gateway.
const IN_FLIGHT: &str = "in flight at the gateway";
/// Those that wait for a slot.
const WAITING: &str = "waiting for a slot at the gateway";
/// Invocations in the scheduler's queue.
const QUEUED: &str = "queued at the scheduler";
/// Maximum number of samples kept for one scenario.
const LEVELS_MAX: usize = 400_000;

/// Levels at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Level {
    /// Seconds since the scenario began.
    at: f64,
    /// Instances by state; a ready one is `busy` or `idle`.
    instances: BTreeMap<String, u64>,
    /// Memory charged to all instances, MiB.
    memory_mib: f64,
    /// The roles' metrics, over all workers; only in some of the samples.
    gauges: BTreeMap<String, f64>,
}

/// Puts a scenario's levels into a record.
pub(super) fn record(record: &mut Record, scenario: &str, levels: &[Level]) {
    const MIB: f64 = 1_048_576.0;
    let mut put = |table: &str, name: &str, unit: &str, of: &dyn Fn(&Level) -> Option<f64>| {
        let told: Vec<(f64, f64)> = levels.iter().filter_map(|l| Some((l.at, of(l)?))).collect();
        if !told.is_empty() {
            let row = Row::of(format!("{scenario}: {table}"), &[("of", &name)]);
            let series = record.series(&row, table, unit);
            (series.at, series.values.samples) = told.into_iter().unzip();
        }
    };
    let states: BTreeSet<&String> = levels.iter().flat_map(|l| l.instances.keys()).collect();
    for state in states {
        put(POOL, state, "", &|l| {
            Some(l.instances.get(state).copied().unwrap_or_default() as f64)
        });
    }
    put(POOL, SANDBOXES, "", &|l| l.gauges.get(SANDBOXES).copied());
    for name in [IN_FLIGHT, WAITING, QUEUED] {
        put(QUEUES, name, "", &|l| l.gauges.get(name).copied());
    }
    for name in [INSTANCES_MEMORY, TEMPLATES] {
        put(MEMORY, name, "MiB", &|l| Some(l.gauges.get(name)? / MIB));
    }
    put(MEMORY, "by the instances' own report", "MiB", &|l| Some(l.memory_mib));
}

/// The part of `/v1/status` that is read. It has a shape of its own, so that a platform of another revision can be
/// watched too.
#[derive(Deserialize)]
struct Status {
    instances: Vec<Instance>,
    #[serde(default)]
    workers: Vec<Worker>,
}

#[derive(Deserialize)]
struct Worker {
    id: String,
}

#[derive(Deserialize)]
struct Instance {
    state: String,
    in_flight: u64,
    memory_bytes: u64,
}

/// Samples until `stop` says so.
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
        // A failed sample is only a gap in the plot.
        let with_metrics = levels.len() % METRICS_EVERY == 0;
        match look(target, &mut connection, with_metrics).await {
            Ok(level) if levels.len() < LEVELS_MAX => {
                let at = began.elapsed().as_secs_f64();
                levels.push(Level { at, ..level });
            }
            Ok(_) => {}
            Err(_) => connection = None,
        }
    }
}

async fn look(target: &Target, kept: &mut Option<Connection>, with_metrics: bool) -> Result<Level> {
    let connection = match kept {
        Some(connection) => connection,
        None => kept.insert(Connection::open_at(target.address()?).await?),
    };
    let authorization = format!("Bearer {}", target.client.key());
    let headers = [("authorization", authorization.as_str())];
    let mut ask = async |path: &str| {
        let answer = connection.call(Method::GET, path, &headers).await?;
        if !answer.status.is_success() {
            bail!("{path}: {}: {}", answer.status, answer.text());
        }
        Ok(answer.body)
    };
    let status: Status = serde_json::from_slice(&ask("/v1/status").await?).context("/v1/status is not what it was")?;
    let mut level = level(&status.instances);
    if with_metrics {
        let workers = status
            .workers
            .iter()
            .map(|w| (format!("/v1/workers/{}/metrics", w.id), &WORKER_GAUGES[..]));
        let others = [
            ("/metrics", &GATEWAY_GAUGES[..]),
            ("/v1/metrics", &SCHEDULER_GAUGES[..]),
        ];
        for (path, wanted) in workers.chain(others.map(|(p, w)| (p.to_owned(), w))) {
            // A platform of a revision without metrics is watched without them.
            if let Ok(text) = ask(&path).await {
                gauges(&String::from_utf8_lossy(&text), wanted, &mut level.gauges);
            }
        }
    }
    Ok(level)
}

/// Adds the wanted gauges, which have no labels, from Prometheus' text format.
fn gauges(text: &str, wanted: &[(&str, &str)], into: &mut BTreeMap<String, f64>) {
    for line in text.lines() {
        let Some((name, value)) = line.split_once(' ') else {
            continue;
        };
        let (Some((_, called)), Ok(value)) = (wanted.iter().find(|(n, _)| *n == name), value.trim().parse::<f64>())
        else {
            continue;
        };
        *into.entry((*called).to_owned()).or_default() += value;
    }
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
    fn gauges_of_several_workers_add_up() {
        let text = "# HELP rekindle_sandboxes_ready Empty.\n# TYPE rekindle_sandboxes_ready gauge\n\
            rekindle_sandboxes_ready 3\nother{a=\"b\"} 7\n";
        let mut found = BTreeMap::new();
        gauges(text, &WORKER_GAUGES, &mut found);
        gauges(text, &WORKER_GAUGES, &mut found);
        assert_eq!(found, BTreeMap::from([(SANDBOXES.to_owned(), 6.0)]));
    }

    #[test]
    fn the_metrics_it_reads_are_documented() {
        let documented =
            std::fs::read_to_string(rekindle_testkit::binaries::checkout().join("docs/reference/metrics.md")).unwrap();
        for (name, _) in WORKER_GAUGES.iter().chain(&GATEWAY_GAUGES).chain(&SCHEDULER_GAUGES) {
            assert!(
                documented.contains(&format!("| `{name}` |")),
                "{name} is no metric of a role any more"
            );
        }
    }

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

//! `rekindle-bench load`: a platform under k6's scenarios, and the report of it.
//!
//! ```text
//! jaeger <──spans── target (own or running) ── folders deployed ──> for each scenario: k6 ──samples──> points ─┐
//!                                                                    pool ──levels───────────┴─> record.json ─> plots ─> index.html
//! ```

mod args;
mod folders;
mod histogram;
mod jaeger;
mod k6;
mod page;
mod plots;
mod points;
mod pool;
mod record;
mod scenario;
mod target;
mod trace;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Instant, SystemTime};

use anyhow::{Context as _, Result};
use tempfile::TempDir;

pub(crate) use args::{LoadArgs, LoadReportArgs, TraceArgs};
use jaeger::Jaeger;
use k6::K6;
pub(crate) use pool::gauges;
use record::{LoadRecord, Ran};
use scenario::{MANY, Scenario};
use target::Target;
use trace::Trace;

use crate::args::Args;
use crate::record::{told, write_json};

/// A load would fill any store, so one trace in a hundred is kept. A client that asks for its own trace gets it.
const SAMPLED: [(&str, &str); 2] = [
    ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
    ("OTEL_TRACES_SAMPLER_ARG", "0.01"),
];
/// The setting with the number of functions of `popularity`.
const MANY_SETTING: &str = "MANY";

/// Runs the load and writes its report. The exit code is a failure if a threshold was crossed.
pub(crate) async fn run(args: &Args, load: &LoadArgs) -> Result<ExitCode> {
    let k6 = K6::find(load.k6.as_deref(), &args.cache)?;
    let chosen = if load.scenarios.is_empty() {
        Scenario::ALL.to_vec()
    } else {
        load.scenarios.clone()
    };
    // These have a platform of their own, after the others.
    let (on_two, scenarios): (Vec<Scenario>, Vec<Scenario>) =
        chosen.iter().copied().partition(|s| s.takes_two_workers());
    let mut record = LoadRecord::begin();
    eprintln!(
        "{} for {} each, on {}",
        names(&chosen),
        humantime::format_duration(load.duration),
        record.machine
    );
    let folders = tempfile::Builder::new()
        .prefix("rekindle-load-")
        .tempdir()
        .context("no temporary directory")?;
    let jaeger = match load.port {
        Some(_) => Jaeger::running().await,
        None => Jaeger::start(&args.cache).await?,
    };
    let endpoint = jaeger.as_ref().map(Jaeger::endpoint);
    let settings: Vec<(&str, &str)> = match &endpoint {
        Some(endpoint) => [("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", endpoint.as_str())]
            .into_iter()
            .chain(SAMPLED)
            .collect(),
        None => Vec::new(),
    };
    record.k6 = k6.version().to_owned();
    record.duration_s = load.duration.as_secs_f64();
    record.settings.clone_from(&load.settings);

    let mut outcome = Ok(());
    for scenarios in [&scenarios, &on_two] {
        let Some(first) = scenarios.first().filter(|_| outcome.is_ok()) else {
            continue;
        };
        let target = match first.takes_two_workers() {
            true => Target::of_two_workers(args, &settings).await?,
            false => Target::of(args, load, &settings).await?,
        };
        if record.platform.is_empty() {
            record.platform = target.told();
        }
        let environment = environment(load, &target)?;
        let deployed = deploy(&target, scenarios, many(&environment)?, folders.path())?;
        outcome = measure(&mut record, load, &k6, &target, scenarios, &environment, &folders).await;
        if record.trace.is_err() {
            record.trace = traced(jaeger.as_ref(), &target, deployed.first().map_or("", String::as_str)).await;
        }
        for function in &deployed {
            // Leftovers of a load do no harm: a failed removal is reported, but is no failure.
            if let Err(error) = target.remove(function) {
                eprintln!("{error:#}");
            }
        }
    }
    record.end();
    let dir = record.place(load.out.as_deref());
    write(&record, &dir)?;
    page::print(&record);
    println!("\nreport: {}", told(&dir.join("index.html")));
    // Scenarios that ran before a failed one are in the report all the same.
    outcome?;
    let is_traced = match &record.trace {
        Ok(trace) if trace.lacks.is_empty() => true,
        Ok(trace) => {
            eprintln!("the trace of a restored invocation lacks: {}", trace.lacks.join(", "));
            false
        }
        // Without a trace store there is no trace, which the report says.
        Err(_) if jaeger.is_none() => true,
        Err(why) => {
            eprintln!("no trace of a restored invocation: {why}");
            false
        }
    };
    let crossed: Vec<String> = record
        .crossed()
        .map(|(s, t)| format!("{}: {} {}", s.name(), t.metric, t.limit))
        .collect();
    if !crossed.is_empty() {
        eprintln!("thresholds crossed:\n  {}", crossed.join("\n  "));
    }
    Ok(if crossed.is_empty() && is_traced {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// `rekindle-bench load-report`: writes the page and the plots again, from a record.
pub(crate) fn report(args: &LoadReportArgs) -> Result<()> {
    let path = &args.record;
    let text = fs::read_to_string(path).with_context(|| format!("{}: cannot be read", path.display()))?;
    let record: LoadRecord =
        serde_json::from_str(&text).with_context(|| format!("{}: no record of a load", path.display()))?;
    let dir = path.parent().unwrap_or(Path::new("."));
    page::write(&record, dir)?;
    println!("report: {}", told(&dir.join("index.html")));
    Ok(())
}

/// `rekindle-bench trace`: a trace as text, from the store that `make traces` started.
pub(crate) async fn show_trace(args: &TraceArgs) -> Result<ExitCode> {
    let jaeger = Jaeger::running()
        .await
        .context("no trace store answers on this machine: start it with `make traces`")?;
    let trace = trace::stored(&jaeger, args.id.as_deref()).await?;
    println!("trace {}\n{}", trace.id, trace.text());
    Ok(ExitCode::SUCCESS)
}

fn write(record: &LoadRecord, dir: &Path) -> Result<()> {
    write_json(record, &dir.join("record.json"))?;
    page::write(record, dir)
}

async fn measure(
    record: &mut LoadRecord,
    load: &LoadArgs,
    k6: &K6,
    target: &Target,
    scenarios: &[Scenario],
    environment: &BTreeMap<String, String>,
    folders: &TempDir,
) -> Result<()> {
    for scenario in scenarios {
        let mut environment = environment.clone();
        if matches!(scenario, Scenario::Deploys | Scenario::Moves) {
            let function = &scenario.wants(0)[0].name;
            let archive = folders::pack(&folders.path().join(function))?;
            environment.insert("ARCHIVE".to_owned(), archive.display().to_string());
        }
        eprintln!("{}", scenario.name());
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let (began, started) = (SystemTime::now(), Instant::now());
        let (k6, scenario, otlp) = (k6.clone(), *scenario, load.otlp.clone());
        let dir = folders.path().to_owned();
        let running = tokio::task::spawn_blocking(move || k6.run(scenario, &environment, otlp.as_deref(), &dir, began));
        let watching = pool::watch(target, stopped);
        let ran = async {
            let outcome = running.await.context("k6 was not waited for")?;
            // There is no receiver only if the watching has ended already.
            let _listening = stop.send(true);
            outcome
        };
        let (outcome, levels) = tokio::join!(ran, watching);
        let k6::Outcome { tally, thresholds, log } =
            outcome.with_context(|| format!("scenario {}", scenario.name()))?;
        eprintln!(
            "{}: {} answers, {} failures",
            scenario.name(),
            tally.answers(),
            tally.failures()
        );
        record.scenarios.push(Ran {
            scenario,
            took_s: started.elapsed().as_secs_f64(),
            tally,
            thresholds,
            levels,
            log,
        });
    }
    Ok(())
}

/// The trace of one restored invocation, or why there is none.
async fn traced(jaeger: Option<&Jaeger>, target: &Target, function: &str) -> Result<Trace, String> {
    let Some(jaeger) = jaeger else {
        return Err("no trace store: scripts/install-jaeger.sh builds one (for a running platform: `make traces`, then `fn up --traces`)".to_owned());
    };
    trace::of_restored(jaeger, target, function)
        .await
        .map_err(|e| format!("{e:#}"))
}

/// k6's environment: the platform, the duration, and the settings.
fn environment(load: &LoadArgs, target: &Target) -> Result<BTreeMap<String, String>> {
    let seconds = load.duration.as_secs().max(1);
    let mut out = BTreeMap::from([
        ("FN_URL".to_owned(), target.url()),
        ("FN_KEY".to_owned(), target.key.clone()),
        ("PREFIX".to_owned(), scenario::PREFIX.to_owned()),
        ("DURATION".to_owned(), format!("{seconds}s")),
        (MANY_SETTING.to_owned(), MANY.to_string()),
    ]);
    out.extend(load.settings.iter().cloned());
    Ok(out)
}

fn many(environment: &BTreeMap<String, String>) -> Result<usize> {
    let text = environment.get(MANY_SETTING).map_or("", String::as_str);
    text.parse()
        .with_context(|| format!("{MANY_SETTING}={text} is not a number"))
}

/// Deploys everything that the scenarios call, once each. Returns the functions' names.
fn deploy(target: &Target, scenarios: &[Scenario], many: usize, dir: &Path) -> Result<BTreeSet<String>> {
    let mut deployed = BTreeSet::new();
    for wanted in scenarios.iter().flat_map(|s| s.wants(many)) {
        if deployed.insert(wanted.name.clone()) {
            let folder = folders::prepare(&wanted, dir)?;
            target.deploy(&folder)?;
        }
    }
    eprintln!("deployed {} functions", deployed.len());
    Ok(deployed)
}

fn names(scenarios: &[Scenario]) -> String {
    scenarios.iter().map(|s| s.name()).collect::<Vec<_>>().join(", ")
}

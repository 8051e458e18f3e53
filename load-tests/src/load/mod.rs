//! `rekindle-bench load`: a platform under k6's scenarios.
//!
//! ```text
//! jaeger <─spans─ target ── folders deployed ─> each scenario: k6 ─samples─> points ─> the record
//!                    └─ pool ─levels─> the record
//! ```

mod args;
mod jaeger;
mod k6;
mod points;
mod pool;
mod scenario;
mod target;
mod trace;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Instant, SystemTime};

use anyhow::{Context as _, Result, ensure};
use rekindle_testkit::Folder;

pub(crate) use args::{LoadArgs, TraceArgs};
use jaeger::Jaeger;
use k6::K6;
use scenario::{MANY, Scenario};
use target::Target;

use crate::args::Args;
use crate::record::{Plot, PlotKind, Record, Row};

/// A load would fill any store, so one trace in a hundred is kept. A client that asks for its own trace gets it.
const SAMPLED: [(&str, &str); 2] = [
    ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
    ("OTEL_TRACES_SAMPLER_ARG", "0.01"),
];
/// The setting with the number of functions of `popularity`.
const MANY_SETTING: &str = "MANY";
/// Levels over time.
const THROUGHPUT: &str = "throughput";
const POOL: &str = "instances";
const QUEUES: &str = "in flight and waiting";
const MEMORY: &str = "memory of instances and templates";

/// Functions that are deployed, by name.
type Folders = BTreeMap<String, Folder>;

/// Runs the load. It failed if a threshold was crossed.
pub(crate) async fn run(args: &Args, load: &LoadArgs) -> Result<Record> {
    let k6 = K6::find(load.k6.as_deref(), &args.cache)?;
    let chosen = if load.scenarios.is_empty() {
        Scenario::ALL.to_vec()
    } else {
        load.scenarios.clone()
    };
    // These have a platform of their own, after the others.
    let (on_two, scenarios): (Vec<Scenario>, Vec<Scenario>) =
        chosen.iter().copied().partition(|s| s.takes_two_workers());
    let mut record = Record::begin("load");
    record.fact("client", format!("{}, on the same machine", k6.version()));
    record.fact("each scenario", humantime::format_duration(load.duration));
    for (name, value) in &load.settings {
        record.fact(name, value);
    }
    record.fact(
        "note",
        "k6, the platform and its functions share the cores: a latency holds waiting \
         for the client's and other functions' work too",
    );
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
    let mut traced = false;
    for scenarios in [&scenarios, &on_two] {
        let Some(first) = scenarios.first() else { continue };
        let target = match first.takes_two_workers() {
            true => Target::of_two_workers(args, &settings)?,
            false => Target::of(args, load, &settings)?,
        };
        record.program.get_or_insert_with(|| target.told());
        let environment = environment(load, &target)?;
        let folders = deploy(&target, scenarios, many(&environment)?)?;
        for scenario in scenarios {
            let measured = measure(&mut record, load, &k6, &target, *scenario, &environment, &folders).await;
            // Scenarios that ran before a failed one are in the record all the same.
            if let Err(error) = measured {
                record.failures.push(format!("{}: {error:#}", scenario.name()));
            }
        }
        if let (Some(jaeger), false, Some(function)) = (&jaeger, traced, folders.keys().next()) {
            traced = true;
            trace(&mut record, jaeger, &target, function).await;
        }
        for function in folders.keys() {
            // Leftovers of a load do no harm: a failed removal is reported, but is no failure.
            if let Err(error) = target.remove(function) {
                eprintln!("{error:#}");
            }
        }
    }
    if jaeger.is_none() {
        record.findings.push(
            "no trace read back: there is no trace store: scripts/install-jaeger.sh builds \
             one (for a running platform: `make traces`, then `fn up --traces`)"
                .to_owned(),
        );
    }
    Ok(record)
}

/// `rekindle-bench trace`: a trace as text, from the store that `make traces` started.
pub(crate) async fn show_trace(args: &TraceArgs) -> Result<()> {
    let jaeger = Jaeger::running()
        .await
        .context("no trace store answers on this machine: start it with `make traces`")?;
    let trace = trace::stored(&jaeger, args.id.as_deref()).await?;
    println!("trace {}\n{}", trace.id, trace.text());
    Ok(())
}

async fn measure(
    record: &mut Record,
    load: &LoadArgs,
    k6: &K6,
    target: &Target,
    scenario: Scenario,
    environment: &BTreeMap<String, String>,
    folders: &Folders,
) -> Result<()> {
    let name = scenario.name();
    let dir = tempfile::tempdir().context("no temporary directory")?;
    let mut environment = environment.clone();
    if matches!(scenario, Scenario::Deploys | Scenario::Moves) {
        let folder = folders.get(&scenario.wants(0)[0].name).context("it was not deployed")?;
        let archive = pack(folder.path(), dir.path())?;
        environment.insert("ARCHIVE".to_owned(), archive.display().to_string());
    }
    eprintln!("{name}");
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let (began, started) = (SystemTime::now(), Instant::now());
    let (k6, otlp, at) = (k6.clone(), load.otlp.clone(), dir.path().to_owned());
    let running = tokio::task::spawn_blocking(move || k6.run(scenario, &environment, otlp.as_deref(), &at, began));
    let ran = async {
        let outcome = running.await.context("k6 was not waited for")?;
        // There is no receiver only if the watching has ended already.
        let _listening = stop.send(true);
        outcome
    };
    let (outcome, levels) = tokio::join!(ran, pool::watch(target, stopped));
    let k6::Outcome { tally, thresholds, log } = outcome?;
    let (answers, failures) = (tally.answers(), tally.failures());
    eprintln!("{name}: {answers} answers, {failures} failures");
    let row = Row::of("Scenarios", &[("scenario", &name), ("what it does", &scenario.about())]);
    record.push(&row, "answers", "", answers as f64);
    record.push(&row, "failures", "", failures as f64);
    record.push(&row, "time", "s", started.elapsed().as_secs_f64());
    tally.record(record, name);
    pool::record(record, name, &levels);
    for threshold in thresholds {
        record.bar(
            &format!("{name}: {} {}", threshold.metric, threshold.limit),
            "as k6 says",
            threshold.met,
        );
        if !threshold.met {
            record.failures.push(format!(
                "threshold crossed: {name}: {} {}",
                threshold.metric, threshold.limit
            ));
        }
    }
    if !log.is_empty() {
        record.texts.push((format!("{name}: k6's log"), log.join("\n")));
    }
    plots(record, scenario);
    record.cpu_loop();
    Ok(())
}

fn plots(record: &mut Record, scenario: Scenario) {
    let name = scenario.name();
    let table = |what: &str| format!("{name}: {what}");
    let (latency, by) = (table("latency"), "start".to_owned());
    let mut plot = |file: &str, title: String, kind| {
        record.plots.push(Plot {
            file: format!("{name}-{file}"),
            title,
            only: Vec::new(),
            kind,
        });
    };
    plot("latency", latency.clone(), PlotKind::Shares { table: latency, by });
    for (file, what, by) in [
        ("throughput", THROUGHPUT, "start"),
        ("pool", POOL, "of"),
        ("queues", QUEUES, "of"),
        ("memory", MEMORY, "of"),
    ] {
        let (table, by) = (table(what), by.to_owned());
        plot(file, table.clone(), PlotKind::Levels { table, by });
    }
}

/// Reads back the trace of one restored invocation.
async fn trace(record: &mut Record, jaeger: &Jaeger, target: &Target, function: &str) {
    match trace::of_restored(jaeger, target, function).await {
        Ok(trace) => {
            let whole = trace.lacks.is_empty();
            let target = "a restored invocation's trace is whole: every span leads to the client's, and \
                          gateway, scheduler, worker and restorer are in it";
            record.bar(
                target,
                if whole {
                    "read back".to_owned()
                } else {
                    trace.lacks.join(", ")
                },
                whole,
            );
            if !whole {
                record.failures.push(format!(
                    "the trace of a restored invocation lacks: {}",
                    trace.lacks.join(", ")
                ));
            }
            let title = format!("Trace {} of a restored invocation, as Jaeger has it", trace.id);
            record.texts.push((title, trace.text()));
        }
        Err(error) => record
            .failures
            .push(format!("no trace of a restored invocation: {error:#}")),
    }
}

/// k6's environment: the platform, the duration, and the settings.
fn environment(load: &LoadArgs, target: &Target) -> Result<BTreeMap<String, String>> {
    let seconds = load.duration.as_secs().max(1);
    let mut out = BTreeMap::from([
        ("FN_URL".to_owned(), target.client.url()),
        ("FN_KEY".to_owned(), target.client.key()),
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

/// Deploys everything that the scenarios call, once each: copies of folders of the checkout under names of the load's
/// own, so that no other function is touched.
fn deploy(target: &Target, scenarios: &[Scenario], many: usize) -> Result<Folders> {
    let mut folders = Folders::new();
    for wanted in scenarios.iter().flat_map(|s| s.wants(many)) {
        if let Entry::Vacant(vacant) = folders.entry(wanted.name.clone()) {
            let folder = Folder::of(wanted.folder)?;
            folder.set(&wanted.name, &wanted.settings)?;
            target.deploy(&folder)?;
            vacant.insert(folder);
        }
    }
    eprintln!("deployed {} functions", folders.len());
    Ok(folders)
}

/// Packs a folder for the API, into `dir`. Returns the archive.
fn pack(folder: &Path, dir: &Path) -> Result<PathBuf> {
    let archive = dir.join("function.tar.gz");
    let status = Command::new("tar")
        .arg("-czf")
        .arg(&archive)
        .arg("-C")
        .arg(folder)
        .arg(".")
        .status();
    ensure!(
        status.context("tar cannot be started")?.success(),
        "{}: cannot be packed",
        folder.display()
    );
    Ok(archive)
}

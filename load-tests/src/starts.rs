//! The comparison: each workload with every subject in turn, then restores from a cold host.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rekindle_testkit::Platform;

use crate::args::Args;
use crate::ours::Ours;
use crate::peers::Peers;
use crate::record::{Plot, PlotKind, Record, Row};
use crate::rounds::{self, FIRST_RESPONSE, REGIMES, Regime};
use crate::subject::Subject;
use crate::table::number;
use crate::workload::Workload;
use crate::{cold, platform};

/// With fewer runs their slowest says nothing about a tail.
const TAIL_RUNS: u64 = 20;

/// Measures everything that was requested.
pub(crate) async fn run(args: &Args) -> Result<Record> {
    let (chosen, workloads) = (args.subjects(), args.workloads());
    let mut record = Record::begin("starts");
    record.fact("rounds", format!("{} after {} of warm-up", args.runs, args.warmup));
    record.fact(
        "fairness",
        "the peers have no gateway and no hook after the restore, and share the host's network; \
         their root filesystem, images and kernel probe are on tmpfs",
    );
    for base in [Subject::Plain, Subject::LazyPages] {
        record.baseline("subject", base.title());
    }
    let platform = match chosen.iter().any(|s| s.is_ours()) {
        true => Some(platform::start(args, &[])?),
        false => None,
    };
    record.program = platform.as_ref().map(|p| p.program());
    for workload in &workloads {
        measure(args, &mut record, *workload, platform.as_ref()).await?;
    }
    drop(platform);
    if let (Some(workload), 1..) = (workloads.first(), args.cold) {
        cold::measure(args, &mut record, *workload)
            .await
            .context("cold restores")?;
    }
    sizes(&mut record, &workloads);
    let ours = chosen.iter().filter(|s| s.is_ours());
    for subject in ours {
        let failed = |s: &crate::record::Series| s.label("subject") == subject.title() && !s.errors.is_empty();
        if record.series.iter().any(failed) {
            record
                .failures
                .push(format!("failed invocations of {}", subject.name()));
        }
    }
    Ok(record)
}

async fn measure(args: &Args, record: &mut Record, workload: Workload, platform: Option<&Platform>) -> Result<()> {
    let started = Instant::now();
    let folder = match workload.prepare() {
        Ok(folder) => folder,
        Err(error) => {
            let row = Row::of(
                rounds::table(workload, REGIMES[0]),
                &[("language", &workload.language.name())],
            );
            record.series(&row, FIRST_RESPONSE, "ms").missing = Some(format!("{error:#}"));
            return Ok(());
        }
    };
    let mut peers = Peers::start(args, &args.subjects(), workload, folder.path()).await;
    for (program, version) in peers.tell().versions {
        if !record.facts.iter().any(|(name, _)| *name == program) {
            record.fact(&program, version);
        }
    }
    let mut ours = None;
    if let Some(platform) = platform {
        platform.deployed(&folder)?;
        if args.subjects().contains(&Subject::Parked) {
            platform.deployed(&workload.prepare_parked(&folder)?)?;
        }
        if args.subjects().contains(&Subject::Fresh) {
            platform.deployed(&workload.prepare_fresh(&folder)?)?;
        }
        ours = Some(Ours::of(platform, &workload.name()));
    }
    let took = Duration::from_secs(started.elapsed().as_secs());
    eprintln!("{}: ready after {}", workload.title(), humantime::format_duration(took));
    for regime in REGIMES {
        rounds::run(args, record, workload, regime, &mut ours, &mut peers).await;
        judge(record, workload, regime);
        let suffix = if regime == Regime::BackToBack {
            ""
        } else {
            "-after-idle"
        };
        record.plots.push(Plot {
            file: format!("starts-{}{suffix}", workload.name()),
            title: format!("{}: to the first response, {}", workload.title(), regime.title()),
            only: Vec::new(),
            kind: PlotKind::Dots {
                table: rounds::table(workload, regime),
                measures: vec![FIRST_RESPONSE.to_owned()],
            },
        });
    }
    peers.stop();
    Ok(())
}

/// A plot over sizes of each language that was measured with several.
fn sizes(record: &mut Record, workloads: &[Workload]) {
    for first in workloads {
        let (language, mib) = (first.language, first.mib);
        let sizes = workloads.iter().filter(|w| w.language == language);
        if sizes.clone().count() < 2 || sizes.map(|w| w.mib).next() != Some(mib) {
            continue;
        }
        let title = first.title();
        let name = title.split(',').next().unwrap_or_default();
        let only = [("language", language.name()), ("regime", Regime::BackToBack.title())];
        record.plots.push(Plot {
            file: format!("sizes-{}", language.name()),
            title: format!("{name}: median to the first response by memory touched, back to back"),
            only: only.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
            kind: PlotKind::Lines {
                x: "MiB touched".to_owned(),
                y: FIRST_RESPONSE.to_owned(),
                by: "subject".to_owned(),
            },
        });
    }
}

/// The targets of docs/reference/speed.md, as far as their subjects were measured.
fn judge(record: &mut Record, workload: Workload, regime: Regime) {
    let row = |subject| rounds::row(workload, regime, subject);
    let p50 = |subject| record.median(&row(subject), FIRST_RESPONSE);
    let over = |one, other| Some(p50(one)? - p50(other)?);
    let (restored, warm) = (Subject::Restored, Subject::Warm);
    let tail = record
        .series_of(&row(restored), FIRST_RESPONSE)
        .and_then(|s| s.values.figures());
    let tail = tail.filter(|f| f.count >= TAIL_RUNS).map(|f| f.p99 / f.p50);
    let added = over(warm, Subject::Direct);
    let beside = p50(restored)
        .zip(p50(Subject::LazyPages))
        .map(|(ours, theirs)| ours / theirs);
    let title = regime.title();
    for (target, value, most) in [
        ("restored no slower than CRIU lazy-pages, times", beside, 1.0),
        ("warm adds at most 1 ms to asking directly", added, 1.0),
        ("warm adds at most 0.3 ms to asking directly", added, 0.3),
        ("restored at most 10 ms over warm", over(restored, warm), 10.0),
        ("p99 of restored at most 2.5 times its p50", tail, 2.5),
        ("fresh at most 0.5 ms over warm", over(Subject::Fresh, warm), 0.5),
        ("parked at most 2 ms over warm", over(Subject::Parked, warm), 2.0),
    ] {
        if let Some(value) = value {
            let target = format!("{}, {title}: {target}", workload.title());
            record.bar(&target, number(value), value <= most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Language;

    const WORKLOAD: Workload = Workload {
        language: Language::Python,
        mib: 64,
    };

    fn findings(subjects: &[(Subject, &[f64])]) -> Vec<String> {
        let mut record = Record::begin("starts");
        for (subject, samples) in subjects {
            let row = rounds::row(WORKLOAD, Regime::BackToBack, *subject);
            record.extend(&row, FIRST_RESPONSE, "ms", samples.iter().copied());
        }
        judge(&mut record, WORKLOAD, Regime::BackToBack);
        let told = |line: &String| line.split_once("back to back: ").unwrap().1.to_owned();
        record.findings.iter().map(told).collect()
    }

    #[test]
    fn a_bar_is_met_or_missed_by_medians_and_judged_only_where_its_subjects_were_measured() {
        assert_eq!(
            findings(&[(Subject::Restored, &[30.0]), (Subject::LazyPages, &[25.0])]),
            ["restored no slower than CRIU lazy-pages, times: 1.20: MISSED"]
        );
        assert_eq!(
            findings(&[(Subject::Warm, &[1.25]), (Subject::Direct, &[0.5])]),
            [
                "warm adds at most 1 ms to asking directly: 0.75: met",
                "warm adds at most 0.3 ms to asking directly: 0.75: MISSED",
            ]
        );
        assert_eq!(
            findings(&[(Subject::Restored, &[vec![10.0; 19], vec![26.0]].concat())]),
            ["p99 of restored at most 2.5 times its p50: 2.60: MISSED"]
        );
        assert!(findings(&[(Subject::Restored, &[10.0]), (Subject::LazyPages, &[])]).is_empty());
    }
}

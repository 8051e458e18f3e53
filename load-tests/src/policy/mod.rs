//! `rekindle-bench policy`: the retention policy, by the scheduler's very code, against fixed keep-alive times on a
//! generated trace like Azure's, in virtual time. Neither a platform nor a clock is used: a seed gives the same figures
//! on every machine.

mod contender;
mod random;
mod replay;
mod trace;

use std::time::Duration;

use anyhow::{Result, bail};

use crate::record::{Plot, PlotKind, Record, Row};
use crate::table::number;
use contender::Contender;
use replay::{Outcome, PARKED_SHARE, Run, replay};

/// Functions called more often on average are never idle for long under any policy, and are not replayed.
const INTERVAL_LEAST: f64 = 30.0;
const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);
/// The policy with which the others are compared.
const FIXED: Contender = Contender::Fixed(Duration::from_secs(600));

/// `rekindle-bench policy`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct PolicyArgs {
    /// Functions in the trace.
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    functions: u32,
    /// Days that are counted; one uncounted day precedes them.
    #[arg(long, value_name = "DAYS", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=60))]
    days: u32,
    /// Seed of the trace.
    #[arg(long, value_name = "N", default_value_t = 2020)]
    seed: u64,
}

/// Titles of the tables.
const POLICIES: &str = "Policies";
const BOUNDED: &str = "Ours with a limit on what idle instances hold";
const FIXED_TIMES: &str = "Fixed times";
const COLD: &str = "cold starts";
const HELD: &str = "memory of idle instances on average";

/// Replays the trace.
pub(crate) fn run(args: &PolicyArgs) -> Result<Record> {
    let mut record = Record::begin("policy");
    let all = trace::functions(args.functions as usize, args.seed);
    let functions: Vec<_> = all.into_iter().filter(|f| f.interval >= INTERVAL_LEAST).collect();
    if functions.is_empty() {
        bail!("none of the functions is called seldom enough to be replayed: raise --functions");
    }
    let charged = |contender, most, parked_share| {
        let run = Run {
            contender,
            most,
            parked_share,
            from: DAY,
            until: DAY * (args.days + 1),
        };
        replay(&functions, run)
    };
    let of = |contender, most| charged(contender, most, PARKED_SHARE);
    let free = |contender| of(contender, f64::INFINITY);
    let ten = free(FIXED);
    let held = ten.memory();
    record.fact(
        "trace",
        format!(
            "seed {}: {} functions, of which {} are called less than twice a minute; {} uses in {} days",
            args.seed,
            args.functions,
            functions.len(),
            ten.uses,
            args.days
        ),
    );
    record.baseline("policy", "fixed 10 minutes");
    let ours = free(Contender::Ours);
    for (policy, outcome) in [
        ("nothing kept", free(Contender::Fixed(Duration::ZERO))),
        ("fixed 10 minutes", ten.clone()),
        (
            "ready for 1 minute, parked until 10",
            free(Contender::FixedParked(MINUTE, 10 * MINUTE)),
        ),
        ("hybrid histogram, nothing parked", free(Contender::Histogram)),
        ("ours", ours.clone()),
        // As if the template, which it does not share, existed only for it.
        (
            "ours, a parked one charged half",
            charged(Contender::Ours, f64::INFINITY, 0.5),
        ),
    ] {
        let row = Row::of(POLICIES, &[("policy", &policy)]);
        add(&mut record, &row, &outcome);
        let share = |count: u64, of: u64| percent(count as f64 / of.max(1) as f64);
        for (name, value) in [
            ("parked", share(outcome.parked, outcome.uses)),
            ("warm", share(outcome.warm, outcome.uses)),
            ("cold of a function p50", percent(outcome.cold_share(0.5))),
            ("cold p75", percent(outcome.cold_share(0.75))),
            ("cold p90", percent(outcome.cold_share(0.9))),
            (
                "pre-warmed that were used",
                share(outcome.prewarm_used, outcome.prewarmed),
            ),
        ] {
            record.push(&row, name, "%", value);
        }
    }
    // First at equal memory: ours may never hold more than fixed ten minutes hold on average.
    let line = ("policy", "ours, with less and less memory");
    for share in [1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01] {
        let outcome = of(Contender::Ours, share * held);
        let row = Row::of(
            BOUNDED,
            &[("at most, of what fixed 10 holds", &share), (line.0, &line.1)],
        );
        add(&mut record, &row, &outcome);
        record.push(&row, "steps down for room", "", outcome.evicted as f64);
        if share == 1.0 {
            record.findings.push(format!(
                "at no more memory than fixed 10 minutes: {} of its cold starts, {} of its memory",
                number(outcome.cold as f64 / ten.cold.max(1) as f64),
                number(outcome.memory() / held)
            ));
        }
    }
    add(
        &mut record,
        &Row::of(
            BOUNDED,
            &[("at most, of what fixed 10 holds", &"no limit"), (line.0, &line.1)],
        ),
        &ours,
    );
    for minutes in [1, 2, 5, 10, 20, 30, 60, 120, 240] {
        for (policy, contender) in [
            ("fixed, 1 minute to 4 hours", Contender::Fixed(minutes * MINUTE)),
            (
                "ready for 1 minute, then parked, likewise",
                Contender::FixedParked(MINUTE, minutes * MINUTE),
            ),
        ] {
            let row = Row::of(FIXED_TIMES, &[("minutes", &minutes), ("policy", &policy)]);
            add(&mut record, &row, &free(contender));
        }
    }
    record.plots.push(Plot {
        file: "policy".to_owned(),
        title: "Cold starts over memory that idle instances hold".to_owned(),
        only: Vec::new(),
        kind: PlotKind::Lines {
            x: HELD.to_owned(),
            y: COLD.to_owned(),
            by: "policy".to_owned(),
        },
    });
    Ok(record)
}

/// Records what a policy costs and gives.
fn add(record: &mut Record, row: &Row, outcome: &Outcome) {
    record.push(
        row,
        COLD,
        "% of uses",
        percent(outcome.cold as f64 / outcome.uses.max(1) as f64),
    );
    record.push(row, HELD, "GB", outcome.memory() / 1e9);
}

fn percent(share: f64) -> f64 {
    100.0 * share
}

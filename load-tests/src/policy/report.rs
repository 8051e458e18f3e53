//! The tables and the plot of `rekindle-bench policy`.

use comfy_table::Table;

use super::replay::Outcome;
use super::{PolicyArgs, Results};
use crate::plot::{Axis, Line, Lines, PlotError, colour, lines};
use crate::report::table;

const GB: f64 = 1e9;

pub(super) fn print(args: &PolicyArgs, results: &Results) {
    let (all, days) = (args.functions, args.days);
    println!(
        "\nSeed {}: {all} functions, of which {} are called less than twice a minute; {} uses in {days} days",
        args.seed,
        results.replayed,
        results.fixed_ten().uses
    );
    println!("\n{}", policies(results));
    println!(
        "\nOurs with a limit on what idle instances hold\n\n{}",
        bounded(results)
    );
    let (equal, fixed) = (&results.bounded[0].1, results.fixed_ten());
    println!(
        "\nat no more memory than fixed 10 minutes: {:.2} of its cold starts, {:.2} of its memory",
        ratio(equal.cold as f64, fixed.cold as f64),
        ratio(equal.memory(), fixed.memory())
    );
}

fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}

fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

fn policies(results: &Results) -> Table {
    let mut table = table(
        &[
            "policy",
            "cold",
            "parked",
            "warm",
            "cold of a function p50",
            "p75",
            "p90",
            "idle memory, GB",
            "of fixed 10",
            "pre-warmed, used",
        ],
        1,
    );
    let fixed = results.fixed_ten().memory();
    for row in &results.table {
        let Outcome {
            uses,
            cold,
            parked,
            warm,
            prewarmed,
            prewarm_used,
            ..
        } = row.outcome;
        let share = |n: u64| percent(ratio(n as f64, uses as f64));
        table.add_row([
            row.name.clone(),
            share(cold),
            share(parked),
            share(warm),
            percent(row.outcome.cold_share(0.5)),
            percent(row.outcome.cold_share(0.75)),
            percent(row.outcome.cold_share(0.9)),
            format!("{:.2}", row.outcome.memory() / GB),
            format!("{:.2}", ratio(row.outcome.memory(), fixed)),
            match prewarmed {
                0 => "-".to_owned(),
                some => format!("{some}, {}", percent(ratio(prewarm_used as f64, some as f64))),
            },
        ]);
    }
    table
}

fn bounded(results: &Results) -> Table {
    let mut table = table(
        &[
            "at most, of what fixed 10 holds",
            "holds, GB",
            "cold",
            "of fixed 10's cold starts",
            "steps down for room",
        ],
        0,
    );
    let fixed = results.fixed_ten();
    for (share, outcome) in &results.bounded {
        table.add_row([
            format!("{share:.2}"),
            format!("{:.2}", outcome.memory() / GB),
            percent(ratio(outcome.cold as f64, outcome.uses as f64)),
            format!("{:.2}", ratio(outcome.cold as f64, fixed.cold as f64)),
            outcome.evicted.to_string(),
        ]);
    }
    table
}

/// Cold starts over memory.
pub(super) fn plot(args: &PolicyArgs, results: &Results) -> Result<String, PlotError> {
    let point = |o: &Outcome| (o.memory() / GB, 100.0 * ratio(o.cold as f64, o.uses as f64));
    let line = |name: &str, n, mut points: Vec<(f64, f64)>| {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Line {
            name: name.to_owned(),
            colour: colour(n),
            points,
        }
    };
    let ours = results.table.last().map(|row| point(&row.outcome));
    let bounded = results.bounded.iter().map(|(_, o)| point(o)).chain(ours);
    let all = vec![
        line("ours, with less and less memory", 0, bounded.collect()),
        line(
            "fixed, 1 minute to 4 hours",
            1,
            results.fixed.iter().map(|(_, o)| point(o)).collect(),
        ),
        line(
            "ready for 1 minute, then parked, likewise",
            2,
            results.fixed_parked.iter().map(|(_, o)| point(o)).collect(),
        ),
    ];
    let values = |of: fn(&(f64, f64)) -> f64| {
        all.iter()
            .flat_map(move |l| l.points.iter().map(of))
            .collect::<Vec<_>>()
    };
    lines(&Lines {
        title: "Cold starts over memory that idle instances hold".to_owned(),
        note: format!(
            "generated trace, seed {}, {} functions, {} days, virtual time",
            args.seed, args.functions, args.days
        ),
        x: Axis::log(
            "memory of idle instances on average, GB (logarithmic)",
            values(|p| p.0).into_iter(),
        ),
        y: Axis::from_zero("cold starts, % of uses", values(|p| p.1).into_iter()),
        lines: all,
    })
}

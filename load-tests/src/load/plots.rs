//! The plots of one scenario: latency by start kind, throughput and failures over time, and the platform's instances.

use std::collections::{BTreeMap, BTreeSet};

use plotters::style::RGBColor;

use super::pool::{IN_FLIGHT, INSTANCES_MEMORY, QUEUED, SANDBOXES, TEMPLATES, WAITING};
use super::record::Ran;
use crate::plot::{Axis, Colour, Line, Lines, PlotError, colour, lines};

/// The kinds of start in the order of a legend, each with its colour in every plot.
const STARTS: [(&str, usize); 5] = [
    ("warm", 2),
    ("parked", 3),
    ("restored", 0),
    ("booted", 1),
    ("unknown", 6),
];
/// The states of instances, likewise.
const STATES: [(&str, usize); 6] = [
    ("busy", 2),
    ("idle", 5),
    ("parked", 3),
    ("starting", 1),
    ("capturing", 4),
    ("stopping", 6),
];

/// Bytes.
const MIB: f64 = 1_048_576.0;
/// Colour of failures.
const FAILURE: Colour = RGBColor(200, 0, 0);

/// A plot with the name of its file.
pub(super) struct Plot {
    pub(super) name: &'static str,
    pub(super) svg: String,
}

/// All plots of a scenario.
pub(super) fn of(ran: &Ran) -> Result<Vec<Plot>, PlotError> {
    let mut out = vec![
        Plot {
            name: "latency",
            svg: lines(&latency(ran))?,
        },
        Plot {
            name: "throughput",
            svg: lines(&throughput(ran))?,
        },
        Plot {
            name: "pool",
            svg: lines(&pool(ran))?,
        },
        Plot {
            name: "queues",
            svg: lines(&queues(ran))?,
        },
        Plot {
            name: "memory",
            svg: lines(&memory(ran))?,
        },
    ];
    if ran.tally.failures() > 0 {
        out.push(Plot {
            name: "errors",
            svg: lines(&errors(ran))?,
        });
    }
    Ok(out)
}

/// Cumulative share of the responses over latency.
fn latency(ran: &Ran) -> Lines {
    let kinds: Vec<Line> = known(&STARTS, ran.tally.latency.keys())
        .map(|(name, colour)| {
            let histogram = &ran.tally.latency[name];
            let mut points = vec![];
            let mut share = 0.0;
            for (ms, upto) in histogram.cumulative() {
                points.extend([(ms, share), (ms, upto)]);
                share = upto;
            }
            Line {
                name: format!("{name} ({})", histogram.count()),
                colour,
                points,
            }
        })
        .collect();
    let values = kinds
        .iter()
        .flat_map(|l| l.points.iter().map(|p| p.0))
        .collect::<Vec<_>>();
    Lines {
        title: format!("{}: latency by start kind", ran.scenario.name()),
        note: String::new(),
        x: Axis::log(
            "latency, ms: request sent to last byte of the answer (logarithmic)",
            values.into_iter(),
        ),
        y: Axis {
            max: 1.0,
            ..Axis::from_zero("share of answers", [1.0].into_iter())
        },
        lines: kinds,
    }
}

/// Responses and failures a second.
fn throughput(ran: &Ran) -> Lines {
    let present: BTreeSet<&String> = ran.tally.seconds.iter().flat_map(|s| s.answers.keys()).collect();
    let mut all: Vec<Line> = known(&STARTS, present.into_iter())
        .map(|(name, colour)| {
            let counts = ran
                .tally
                .seconds
                .iter()
                .map(|s| s.answers.get(name).copied().unwrap_or(0));
            Line {
                name: name.to_owned(),
                colour,
                points: per_second(ran, counts),
            }
        })
        .collect();
    let counts = ran.tally.seconds.iter().map(|s| s.errors.values().sum());
    all.push(Line {
        name: "failures".to_owned(),
        colour: FAILURE,
        points: per_second(ran, counts),
    });
    over_time(ran, "throughput over time", "requests a second", all)
}

/// Failures a second by code.
fn errors(ran: &Ran) -> Lines {
    let all = ran.tally.errors.keys().enumerate().map(|(n, code)| {
        let counts = ran
            .tally
            .seconds
            .iter()
            .map(|s| s.errors.get(code).copied().unwrap_or(0));
        Line {
            name: code.clone(),
            colour: colour(n),
            points: per_second(ran, counts),
        }
    });
    over_time(ran, "failures by code", "failures a second", all.collect())
}

/// Instances by state.
fn pool(ran: &Ran) -> Lines {
    let present: BTreeSet<&String> = ran.levels.iter().flat_map(|l| l.instances.keys()).collect();
    let of = |map: &BTreeMap<String, u64>, name: &str| {
        map.get(name)
            .copied()
            .map_or(0.0, |n| f64::from(u32::try_from(n).unwrap_or(u32::MAX)))
    };
    let mut all: Vec<Line> = known(&STATES, present.into_iter())
        .map(|(name, colour)| {
            let levels = ran.levels.iter().map(|l| (l.at_ms / 1_000.0, of(&l.instances, name)));
            Line {
                name: name.to_owned(),
                colour,
                points: steps(levels),
            }
        })
        .collect();
    all.extend(gauge(ran, SANDBOXES, 6, 1.0));
    over_time(ran, "pool levels", "instances", all)
}

/// Invocations in flight, and those that wait.
fn queues(ran: &Ran) -> Lines {
    let all = [(IN_FLIGHT, 0), (WAITING, 1), (QUEUED, 4)];
    let all = all
        .into_iter()
        .filter_map(|(name, colour)| gauge(ran, name, colour, 1.0));
    over_time(ran, "in flight and waiting", "invocations", all.collect())
}

/// Memory charged to instances, and what their clones share.
fn memory(ran: &Ran) -> Lines {
    let all = [(INSTANCES_MEMORY, 0), (TEMPLATES, 1)];
    let mut all: Vec<Line> = all
        .into_iter()
        .filter_map(|(name, colour)| gauge(ran, name, colour, MIB))
        .collect();
    if all.is_empty() {
        let levels = ran.levels.iter().map(|l| (l.at_ms / 1_000.0, l.memory_mib));
        all.push(Line {
            name: INSTANCES_MEMORY.to_owned(),
            colour: colour(0),
            points: steps(levels),
        });
    }
    over_time(ran, "memory of instances and templates", "MiB", all)
}

/// A metric's values, in units of `unit`; `None` if there is no such metric.
fn gauge(ran: &Ran, name: &str, colour_of: usize, unit: f64) -> Option<Line> {
    let told = ran
        .levels
        .iter()
        .filter_map(|l| Some((l.at_ms / 1_000.0, l.gauges.get(name)? / unit)));
    let points = steps(told);
    (!points.is_empty()).then(|| Line {
        name: name.to_owned(),
        colour: colour(colour_of),
        points,
    })
}

fn over_time(ran: &Ran, what: &str, unit: &str, lines: Vec<Line>) -> Lines {
    let values = lines
        .iter()
        .flat_map(|l| l.points.iter().map(|p| p.1))
        .collect::<Vec<_>>();
    Lines {
        title: format!("{}: {what}", ran.scenario.name()),
        note: String::new(),
        x: Axis {
            max: ran.took_s.max(1.0),
            ..Axis::from_zero("seconds since the scenario began", [1.0].into_iter())
        },
        y: Axis::from_zero(unit, values.into_iter()),
        lines,
    }
}

/// The names in the order and colours of `order`, followed by unknown ones.
fn known<'a>(
    order: &'a [(&'a str, usize)],
    names: impl Iterator<Item = &'a String>,
) -> impl Iterator<Item = (&'a str, Colour)> {
    let names: BTreeSet<&str> = names.map(String::as_str).collect();
    let others: Vec<&str> = names
        .iter()
        .copied()
        .filter(|n| order.iter().all(|(o, _)| o != n))
        .collect();
    let first = order
        .iter()
        .filter(move |(o, _)| names.contains(o))
        .map(|(o, n)| (*o, colour(*n)));
    first.chain(others.into_iter().enumerate().map(|(n, other)| (other, colour(n + 4))))
}

/// A count of each second as a step over it. The last second is left out if less than half of it was measured.
fn per_second(ran: &Ran, counts: impl Iterator<Item = u64>) -> Vec<(f64, f64)> {
    let number = |n: u64| f64::from(u32::try_from(n).unwrap_or(u32::MAX));
    let whole = (0_u32..)
        .map(f64::from)
        .zip(counts)
        .take_while(|(s, _)| *s < 1.0 || s + 0.5 <= ran.took_s);
    whole
        .flat_map(|(s, n)| [(s, number(n)), ((s + 1.0).min(ran.took_s.max(1.0)), number(n))])
        .collect()
}

/// Levels that hold until the next one.
fn steps(levels: impl Iterator<Item = (f64, f64)>) -> Vec<(f64, f64)> {
    let mut out: Vec<(f64, f64)> = Vec::new();
    for (at, level) in levels {
        if let Some((_, before)) = out.last().copied() {
            out.push((at, before));
        }
        out.push((at, level));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_names_come_in_their_order_and_others_after_them() {
        let names = ["zebra", "warm", "restored"].map(str::to_owned);
        let listed: Vec<&str> = known(&STARTS, names.iter()).map(|(n, _)| n).collect();
        assert_eq!(listed, ["warm", "restored", "zebra"]);
    }

    #[test]
    fn a_level_holds_until_the_next() {
        assert_eq!(
            steps([(0.0, 1.0), (2.0, 5.0)].into_iter()),
            [(0.0, 1.0), (2.0, 1.0), (2.0, 5.0)]
        );
    }

    #[test]
    fn a_last_second_of_which_little_was_measured_is_left_out() {
        let ran = |took_s| Ran {
            scenario: crate::load::scenario::Scenario::Steady,
            took_s,
            tally: crate::load::points::Tally::default(),
            thresholds: Vec::new(),
            levels: Vec::new(),
            log: Vec::new(),
        };
        assert_eq!(per_second(&ran(1.2), [3, 1].into_iter()), [(0.0, 3.0), (1.0, 3.0)]);
        assert_eq!(per_second(&ran(1.6), [3, 1].into_iter()).len(), 4);
    }
}

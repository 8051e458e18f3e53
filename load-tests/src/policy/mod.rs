//! `rekindle-bench policy`: the retention policy, by the scheduler's very code, against fixed keep-alive times on a
//! generated trace like Azure's, in virtual time. Neither a platform nor a clock is used: a seed gives the same figures
//! on every machine.

mod contender;
mod random;
mod replay;
mod report;
mod trace;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

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
    /// Draw the plot into this directory.
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
}

/// A contender with its outcome.
struct Row {
    name: String,
    outcome: Outcome,
}

/// All replays.
struct Results {
    replayed: usize,
    /// The policies side by side.
    table: Vec<Row>,
    /// Ours with less and less memory for idle instances, as shares of what fixed ten minutes take.
    bounded: Vec<(f64, Outcome)>,
    /// Fixed times, by minutes.
    fixed: Vec<(u32, Outcome)>,
    fixed_parked: Vec<(u32, Outcome)>,
}

impl Results {
    fn fixed_ten(&self) -> &Outcome {
        let ten = self.fixed.iter().find(|(minutes, _)| *minutes == 10);
        &ten.unwrap_or(&self.fixed[0]).1
    }
}

/// Replays the trace, prints the tables and draws the plot.
pub(crate) fn run(args: &PolicyArgs) -> Result<()> {
    let began = Instant::now();
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
    let minutes = [1, 2, 5, 10, 20, 30, 60, 120, 240];
    let fixed: Vec<_> = minutes.map(|m| (m, free(Contender::Fixed(m * MINUTE)))).into();
    let fixed_parked: Vec<_> = minutes
        .map(|m| (m, free(Contender::FixedParked(MINUTE, m * MINUTE))))
        .into();
    let row = |name: &str, outcome| Row {
        name: name.to_owned(),
        outcome,
    };
    let ten = free(FIXED);
    let held = ten.memory();
    let ours = free(Contender::Ours);
    let bounded = [0.5, 0.2, 0.1, 0.05, 0.02, 0.01];
    let mut bounded: Vec<_> = bounded.map(|share| (share, of(Contender::Ours, share * held))).into();
    // At equal memory: ours may never hold more than fixed ten minutes hold on average.
    bounded.insert(0, (1.0, of(Contender::Ours, held)));
    let results = Results {
        replayed: functions.len(),
        table: vec![
            row("nothing kept", free(Contender::Fixed(Duration::ZERO))),
            row("fixed 10 minutes", ten),
            row(
                "ready for 1 minute, parked until 10",
                free(Contender::FixedParked(MINUTE, 10 * MINUTE)),
            ),
            row("hybrid histogram, nothing parked", free(Contender::Histogram)),
            row("ours", ours),
            // As if the template, which it does not share, existed only for it.
            row(
                "ours, a parked one charged half",
                charged(Contender::Ours, f64::INFINITY, 0.5),
            ),
        ],
        bounded,
        fixed,
        fixed_parked,
    };
    report::print(args, &results);
    if let Some(dir) = &args.plots {
        let file = dir.join("policy.svg");
        let svg = report::plot(args, &results)?;
        fs::write(&file, svg).with_context(|| format!("{}: cannot be written", file.display()))?;
        println!("\nplot: {}", file.display());
    }
    eprintln!("replayed in {:.0} s", began.elapsed().as_secs_f64());
    Ok(())
}

//! `rekindle-bench throughput`: warm invocations by clients without a pause, compared with the same function asked
//! directly. Cores are assigned to each process.
//!
//! ```text
//!              apart: one core each               together: one core for both
//! ours         client, platform | function        client | platform, function
//! direct       client           | function        client | function
//! ```

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use futures::future::try_join_all;
use http::Method;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use serde::Serialize;

use crate::args::Args;
use crate::client::Connection;
use crate::folder;
use crate::peers::Peers;
use crate::platform::Platform;
use crate::processes;
use crate::record::{self, Taken};
use crate::report::table;
use crate::stats::figures;
use crate::subject::Subject;
use crate::workload::{Language, Workload};

/// `rekindle-bench throughput`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ThroughputArgs {
    /// The function's language.
    #[arg(long, value_enum, default_value_t = Language::Python)]
    language: Language,
    /// Connections, each with one request at a time.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 8])]
    clients: Vec<usize>,
    /// Rounds, in each of which every side has its turn.
    #[arg(long, value_name = "N", default_value_t = 7)]
    rounds: usize,
    /// Duration of a turn.
    #[arg(long, default_value = "2s", value_parser = rekindle_wire::manifest::parse_duration)]
    turn: Duration,
    /// Where to write the figures; by default load-tests/results/DATE-REVISION-throughput.json.
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
}

/// How the two cores are assigned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum Deal {
    Apart,
    Together,
}

#[derive(Debug, Clone, Serialize)]
struct Record {
    #[serde(flatten)]
    taken: Taken,
    turns: Vec<Turn>,
}

/// The results of one side's turn.
#[derive(Debug, Clone, Serialize)]
struct Turn {
    deal: Deal,
    clients: usize,
    ours: bool,
    a_second: f64,
    p50_ms: f64,
    /// Processor time of the server's side for each request, including the function's.
    cpu_us: f64,
}

struct Side {
    ours: bool,
    port: u16,
    path: String,
    /// All its processes descend from this one.
    root: u32,
}

/// Measures, writes and prints.
pub(crate) async fn run(args: &Args, throughput: &ThroughputArgs) -> Result<()> {
    let mut record = Record {
        taken: Taken::now(),
        turns: Vec::new(),
    };
    if record.taken.machine.cores < 2 {
        bail!("this takes two cores");
    }
    let workload = Workload {
        language: throughput.language,
        mib: 64,
    };
    let folders = tempfile::tempdir().context("no temporary directory")?;
    let folder = workload.prepare(folders.path())?;
    let most = throughput.clients.iter().max().copied().unwrap_or(1).to_string();
    // One instance takes all requests, as the process on the host does.
    folder::rename(&folder, &workload.name(), &[("concurrency", &most)])?;
    let peers = Peers::start(args, &[Subject::Direct], workload, &folder).await;
    let direct = peers
        .tell()
        .direct_port
        .context("the function cannot be asked directly")?;
    let platform = Platform::start(args).await?;
    platform.deploy(&folder)?;
    let sides = [
        Side {
            ours: true,
            port: platform.port(),
            path: format!("/function/{}/", workload.name()),
            root: platform.pid(),
        },
        Side {
            ours: false,
            port: direct,
            path: "/".to_owned(),
            root: peers.pid().context("the peers have ended")?,
        },
    ];
    for side in &sides {
        side.turn(1, Duration::from_millis(500)).await?;
    }
    for deal in [Deal::Apart, Deal::Together] {
        for clients in &throughput.clients {
            for round in 0..throughput.rounds {
                let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
                for side in order.map(|n| &sides[n]) {
                    side.pin(deal)?;
                    let (a_second, p50_ms, cpu_us) = side.turn(*clients, throughput.turn).await?;
                    record.turns.push(Turn {
                        deal,
                        clients: *clients,
                        ours: side.ours,
                        a_second,
                        p50_ms,
                        cpu_us,
                    });
                }
            }
        }
    }
    peers.stop();
    let path = record.taken.place(throughput.json.as_deref(), "-throughput");
    record::write_json(&record, &path)?;
    print(&record, throughput);
    println!("\nfigures: {}", record::told(&path));
    Ok(())
}

impl Side {
    /// Assigns the cores: this program has the first.
    fn pin(&self, deal: Deal) -> Result<()> {
        pin(std::process::id(), 0)?;
        for pid in processes::tree(self.root) {
            let with_client = deal == Deal::Apart && self.ours && pid == self.root;
            pin(pid, usize::from(!with_client))?;
        }
        Ok(())
    }

    /// Requests a second, their median in milliseconds, and the server's processor time for each in microseconds.
    async fn turn(&self, clients: usize, lasts: Duration) -> Result<(f64, f64, f64)> {
        let mut connections = Vec::new();
        for _ in 0..clients {
            let mut connection = Connection::open(self.port).await?;
            connection.call(Method::GET, &self.path, &[]).await?.of_function()?;
            connections.push(connection);
        }
        let (began, cpu_before) = (Instant::now(), processes::cpu_ms(self.root));
        let all = try_join_all(connections.into_iter().map(|mut connection| async move {
            let mut took = Vec::new();
            while began.elapsed() < lasts {
                let sent = Instant::now();
                connection.call(Method::GET, &self.path, &[]).await?.of_function()?;
                took.push(sent.elapsed().as_secs_f64() * 1e3);
            }
            anyhow::Ok(took)
        }))
        .await?;
        let (seconds, cpu) = (began.elapsed().as_secs_f64(), processes::cpu_ms(self.root) - cpu_before);
        let figures = figures(all.into_iter().flatten()).context("no request was answered")?;
        let count = figures.count as f64;
        Ok((count / seconds, figures.p50, cpu * 1e3 / count))
    }
}

/// Pins every thread of a process to one core. A process that is gone by now needs none.
fn pin(pid: u32, core: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(core).context("there is no such core")?;
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    for task in tasks.into_iter().flatten().flatten() {
        if let Some(thread) = task.file_name().to_str().and_then(|name| name.parse().ok()) {
            // The kernel refuses for a thread that has just ended.
            let _ = sched_setaffinity(Pid::from_raw(thread), &set);
        }
    }
    Ok(())
}

fn print(record: &Record, asked: &ThroughputArgs) {
    println!("\n{}", record.taken);
    let head = [
        "cores",
        "clients",
        "direct, a second",
        "ours",
        "ratio (least, most)",
        "p50 direct, ms",
        "ours",
        "CPU direct, us",
        "ours",
    ];
    let mut shown = table(&head, 1);
    for deal in [Deal::Apart, Deal::Together] {
        for clients in &asked.clients {
            let of = |ours: bool| {
                let turns = record.turns.iter();
                turns.filter(move |t| t.deal == deal && t.clients == *clients && t.ours == ours)
            };
            let median = |ours: bool, what: fn(&Turn) -> f64| figures(of(ours).map(what)).map_or(0.0, |f| f.p50);
            // Of one round each, in the order of the rounds.
            let ratios: Vec<f64> = of(true).zip(of(false)).map(|(o, d)| o.a_second / d.a_second).collect();
            let most = ratios.iter().copied().fold(0.0, f64::max);
            let ratio = figures(ratios).map_or(String::new(), |f| format!("{:.2} ({:.2}, {most:.2})", f.p50, f.min));
            shown.add_row([
                format!("{deal:?}").to_lowercase(),
                clients.to_string(),
                format!("{:.0}", median(false, |t| t.a_second)),
                format!("{:.0}", median(true, |t| t.a_second)),
                ratio,
                format!("{:.3}", median(false, |t| t.p50_ms)),
                format!("{:.3}", median(true, |t| t.p50_ms)),
                format!("{:.0}", median(false, |t| t.cpu_us)),
                format!("{:.0}", median(true, |t| t.cpu_us)),
            ]);
        }
    }
    println!("\n{shown}");
}

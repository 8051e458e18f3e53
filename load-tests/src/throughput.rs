//! `rekindle-bench throughput`: warm invocations by clients without a pause, compared with the same function asked
//! directly. Cores are assigned to each process.
//!
//! ```text
//!              apart: one core each               together: one core for both
//! ours         client, platform | function        client | platform, function
//! direct       client           | function        client | function
//! ```

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use http::Method;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use rekindle_testkit::processes;

use crate::args::Args;
use crate::client::Connection;
use crate::peers::Peers;
use crate::platform;
use crate::record::{Record, Row};
use crate::stats::figures;
use crate::subject::{Subject, ms_since};
use crate::workload::{Language, Workload};

const TABLE: &str = "What clients without a pause get, in turns";

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
    #[arg(long, default_value = "2s", value_parser = rekindle_wire::function_config::parse_duration)]
    turn: Duration,
}

struct Side {
    name: &'static str,
    port: u16,
    path: String,
    /// All its processes descend from this one.
    root: u32,
}

/// Measures.
pub(crate) async fn run(args: &Args, throughput: &ThroughputArgs) -> Result<Record> {
    let mut record = Record::begin("throughput");
    ensure!(record.machine.cores >= 2, "this takes two cores");
    let workload = Workload {
        language: throughput.language,
        mib: 64,
    };
    record.fact("function", workload.name());
    let folder = workload.prepare()?;
    let most = throughput.clients.iter().max().copied().unwrap_or(1).to_string();
    // One instance takes all requests, as the process on the host does.
    folder.set(&workload.name(), &[("concurrency", &most)])?;
    let peers = Peers::start(args, &[Subject::Direct], workload, folder.path()).await;
    let direct = peers
        .tell()
        .direct_port
        .context("the function cannot be asked directly")?;
    let platform = platform::start(args, &[])?;
    record.program = Some(platform.program());
    platform.deployed(&folder)?;
    let sides = [
        Side {
            name: "rekindle",
            port: platform.port(),
            path: format!("/function/{}/", workload.name()),
            root: platform.pid().cast_unsigned(),
        },
        Side {
            name: "the function directly",
            port: direct,
            path: "/".to_owned(),
            root: peers.pid().context("the peers have ended")?,
        },
    ];
    record.baseline("asked", sides[1].name);
    for side in &sides {
        side.turn(1, Duration::from_millis(500)).await?;
    }
    for apart in [true, false] {
        for clients in &throughput.clients {
            for round in 0..throughput.rounds {
                for at in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
                    let side = &sides[at];
                    side.pin(apart)?;
                    let (a_second, p50_ms, cpu_us) = side.turn(*clients, throughput.turn).await?;
                    let cores = if apart { "apart" } else { "together" };
                    let row = Row::of(TABLE, &[("cores", &cores), ("clients", clients), ("asked", &side.name)]);
                    record.push(&row, "answers", "a second", a_second);
                    record.push(&row, "p50 of a turn", "ms", p50_ms);
                    record.push(&row, "CPU of the server's side", "µs", cpu_us);
                }
                record.cpu_loop();
            }
        }
    }
    peers.stop();
    Ok(record)
}

impl Side {
    /// Assigns the cores: this program has the first.
    fn pin(&self, apart: bool) -> Result<()> {
        pin(std::process::id(), 0)?;
        for pid in processes::tree(self.root) {
            let with_client = apart && self.name == "rekindle" && pid == self.root;
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
                took.push(ms_since(sent));
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

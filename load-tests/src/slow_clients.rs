//! `rekindle-bench slow-clients`: what clients that send or read as slowly as they may cost another client.
//!
//! ```text
//! 127.0.0.2   a thousand connections of one sort: heads, bodies, answers     ┐
//!                                                                           ├─ the gateway ─ one function each
//! 127.0.0.1   one connection, a request every few milliseconds: measured    ┘
//! ```
//!
//! The sorts take turns, with turns without slow clients between them. Gateway, worker, functions and clients share the
//! machine's cores.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use http::Method;
use rekindle_testkit::{Folder, processes};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use tokio::sync::oneshot;

use crate::args::Args;
use crate::client::Connection;
use crate::platform;
use crate::record::{Record, Row};
use crate::subject::ms_since;
use crate::table::number;

const TABLE: &str = "A warm request of another client, meanwhile";
const TOOK: &str = "request to the last byte";
/// Called by the client that is measured.
const OTHER: &str = "another";
/// Called by the slow ones. It has one instance.
const SLOWS: &str = "slow";
/// Where they come from. Clients of loopback have no limits by default, so only the measured one is exempt.
const THEIR_ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const EXEMPT: &str = "127.0.0.1/32";
/// How often each sends or takes a byte.
const EVERY: Duration = Duration::from_secs(1);
/// Time from one request of the other client to the next.
const PACE: Duration = Duration::from_millis(4);
/// Limit for all slow clients to be connected.
const CONNECTED_LIMIT: Duration = Duration::from_secs(60);
/// The platform is idle when it takes less processor time than this, in milliseconds, in so long.
const CALM_MS: f64 = 25.0;
const CALM_FOR: Duration = Duration::from_millis(500);
const CALM_LIMIT: Duration = Duration::from_secs(30);
/// What a slow client's socket keeps of an answer, so that little of it is taken by the kernel.
const RECEIVE_BUFFER: u32 = 4 << 10;
/// The most that p99 may grow, by the specification.
const MOST: f64 = 1.1;

/// `rekindle-bench slow-clients`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct SlowClientsArgs {
    /// Number of slow clients.
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    clients: usize,
    /// Rounds, in each of which every sort has its turn.
    #[arg(long, value_name = "N", default_value_t = 10)]
    rounds: usize,
    /// Requests of the other client in a turn.
    #[arg(long, value_name = "N", default_value_t = 500)]
    requests: usize,
}

/// What is slow about them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sort {
    Nothing,
    Heads,
    Bodies,
    Answers,
}

impl Sort {
    const ALL: [Self; 4] = [Self::Nothing, Self::Heads, Self::Bodies, Self::Answers];

    fn title(self) -> &'static str {
        match self {
            Self::Nothing => "none",
            Self::Heads => "send heads",
            Self::Bodies => "send bodies",
            Self::Answers => "take answers",
        }
    }

    /// What is sent at once; the rest follows byte by byte.
    fn beginning(self) -> String {
        match self {
            Self::Nothing => String::new(),
            Self::Heads => format!("GET /function/{SLOWS}/ HTTP/1.1\r\nHost: x\r\nX-Slow: "),
            Self::Bodies => {
                format!("POST /function/{SLOWS}/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
            }
            Self::Answers => {
                format!("GET /function/{SLOWS}/stream?pieces=200&bytes=65536&pause_ms=0 HTTP/1.1\r\nHost: x\r\n\r\n")
            }
        }
    }
}

/// Measures.
pub(crate) async fn run(args: &Args, asked: &SlowClientsArgs) -> Result<Record> {
    let mut record = Record::begin("slow-clients");
    record.fact("slow clients", asked.clients);
    record.baseline("slow clients that", Sort::Nothing.title());
    let platform = platform::start(args, &[("FN_CLIENT_EXEMPT", EXEMPT)])?;
    record.program = Some(platform.program());
    let folder = Folder::of("functions/samples/hello-python")?;
    folder.set(OTHER, &[("idle", "\"600s\"")])?;
    platform.deployed(&folder)?;
    let folder = Folder::of("load-tests/functions/bodies")?;
    let settings = [("idle", "\"600s\""), ("max_instances", "1"), ("concurrency", "64")];
    folder.set(SLOWS, &settings)?;
    platform.deployed(&folder)?;
    let address = platform::address(&platform)?;
    let root = platform.pid().cast_unsigned();
    let mut connection = Connection::open_at(address).await?;
    turn(&mut connection, asked.requests).await?;
    for round in 0..asked.rounds {
        let mut sorts = Sort::ALL;
        sorts.rotate_left(round % Sort::ALL.len());
        for sort in sorts {
            eprintln!("round {} of {}: {}", round + 1, asked.rounds, sort.title());
            let clients = if sort == Sort::Nothing { 0 } else { asked.clients };
            let slow = SlowClients::start(address, sort, clients).await?;
            let (began, cpu) = (Instant::now(), processes::cpu_ms(root));
            let took = turn(&mut connection, asked.requests).await?;
            let (seconds, cpu) = (began.elapsed().as_secs_f64(), processes::cpu_ms(root) - cpu);
            let open = slow.stop();
            let row = row(sort);
            record.extend(&row, TOOK, "ms", took);
            record.in_blocks(&row, asked.requests);
            record.push(&row, "platform's processor time", "ms a second", cpu / seconds);
            record.push(&row, "slow clients at the end", "", open as f64);
            // A function goes on with answers that nobody takes any more, which the next turn is not to pay for.
            calm(root).await;
        }
        record.cpu_loop();
    }
    findings(&mut record);
    Ok(record)
}

/// Waits until the platform is nearly idle, or for as long as it may take.
async fn calm(root: u32) {
    let deadline = Instant::now() + CALM_LIMIT;
    while Instant::now() < deadline {
        let before = processes::cpu_ms(root);
        tokio::time::sleep(CALM_FOR).await;
        if processes::cpu_ms(root) - before < CALM_MS {
            return;
        }
    }
}

fn row(sort: Sort) -> Row {
    Row::of(TABLE, &[("slow clients that", &sort.title())])
}

/// How much p99 grew, by sort.
fn findings(record: &mut Record) {
    let p99 = |record: &Record, sort| record.series_of(&row(sort), TOOK)?.values.percentile(99.0);
    let Some(alone) = p99(record, Sort::Nothing) else {
        return;
    };
    for sort in &Sort::ALL[1..] {
        if let Some(beside) = p99(record, *sort) {
            let (times, met) = (beside / alone, if beside / alone <= MOST { "met" } else { "not met" });
            let finding = format!(
                "beside those that {}, p99 is {} times that without: at most {MOST} is {met}",
                sort.title(),
                number(times)
            );
            record.findings.push(finding);
        }
    }
}

/// The other client's requests, at a steady pace. Returns the milliseconds of each.
async fn turn(connection: &mut Connection, requests: usize) -> Result<Vec<f64>> {
    let mut took = Vec::with_capacity(requests);
    let mut ticks = tokio::time::interval(PACE);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for _ in 0..requests {
        ticks.tick().await;
        let sent = Instant::now();
        let path = format!("/function/{OTHER}/");
        let reply = connection.call(Method::GET, &path, &[]).await?;
        took.push(ms_since(sent));
        ensure!(reply.status.is_success(), "{}: {}", reply.status, reply.text());
    }
    Ok(took)
}

/// Slow clients of one sort, on a thread of their own.
struct SlowClients {
    open: Arc<AtomicUsize>,
    stop: Option<(oneshot::Sender<()>, thread::JoinHandle<()>)>,
}

impl SlowClients {
    /// Starts them and waits until each is connected and has sent its beginning.
    async fn start(gateway: SocketAddr, sort: Sort, number: usize) -> Result<Self> {
        let open = Arc::new(AtomicUsize::new(0));
        if number == 0 {
            return Ok(Self { open, stop: None });
        }
        let (stop, stopped) = oneshot::channel();
        let of_all = Arc::clone(&open);
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.expect("a runtime of one thread");
            runtime.block_on(async {
                for _ in 0..number {
                    tokio::spawn(slow_client(gateway, sort, Arc::clone(&of_all)));
                    // One after the other: the backlog of a listening socket is short.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                // An error means that the other end is gone: time to stop, too.
                let _ = stopped.await;
            });
        });
        let deadline = Instant::now() + CONNECTED_LIMIT;
        while open.load(Ordering::Relaxed) < number {
            ensure!(
                Instant::now() < deadline,
                "only {} of {number} slow clients are connected after {CONNECTED_LIMIT:?}",
                open.load(Ordering::Relaxed)
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(Self {
            open,
            stop: Some((stop, thread)),
        })
    }

    /// Closes them. Returns how many were connected at the end.
    fn stop(mut self) -> usize {
        let open = self.open.load(Ordering::Relaxed);
        if let Some((stop, thread)) = self.stop.take() {
            drop(stop);
            // It panics only without a runtime, which was told.
            let _ = thread.join();
        }
        open
    }
}

/// Is connected again and again, as who means harm is.
async fn slow_client(gateway: SocketAddr, sort: Sort, open: Arc<AtomicUsize>) {
    loop {
        // A gateway that turns one away is asked again.
        let _ = slow_connection(gateway, sort, &open).await;
        tokio::time::sleep(EVERY).await;
    }
}

/// One connection, until its end.
async fn slow_connection(gateway: SocketAddr, sort: Sort, open: &AtomicUsize) -> Result<()> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    socket.bind(SocketAddr::from((THEIR_ADDRESS, 0)))?;
    let mut stream = socket.connect(gateway).await.context("no connection")?;
    stream.write_all(sort.beginning().as_bytes()).await?;
    open.fetch_add(1, Ordering::Relaxed);
    let mut byte = [0];
    let ended: Result<()> = async {
        loop {
            tokio::time::sleep(EVERY).await;
            if sort == Sort::Answers {
                ensure!(stream.read(&mut byte).await? > 0, "the answer has ended");
            } else {
                stream.write_all(b"x").await?;
            }
        }
    }
    .await;
    open.fetch_sub(1, Ordering::Relaxed);
    ended
}

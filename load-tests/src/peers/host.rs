//! `rekindle-bench peer-host`: pid 1 of the peers' namespaces. It prepares, reports that, then runs the subject on each
//! line of standard input, one at a time, until that is closed.

use std::io::{BufRead as _, Write as _, stdin, stdout};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use http::Method;
use nix::mount::{MsFlags, mount};
use rekindle_testkit::platform::free_port;
use serde::Serialize;

use super::checkpoint::{Checkpoint, RestoreMode};
use super::container::Containers;
use super::dump::Dumps;
use super::function::{Function, Running};
use super::podman::Podman;
use super::{Outcome, Prepared};
use crate::client::Connection;
use crate::subject::{Sample, Subject};
use crate::workload::{Language, Workload};

/// Enough for the images; it only takes what is written.
const TMPFS_SIZE: &str = "size=6g,mode=0755";

/// `rekindle-bench peer-host`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct PeerHostArgs {
    /// The CRIU binary.
    #[arg(long)]
    pub(crate) criu: PathBuf,
    /// An empty directory, on which its tmpfs is mounted.
    #[arg(long)]
    pub(crate) dir: PathBuf,
    /// Subjects that it will be asked to measure.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) subjects: Vec<Subject>,
    /// The archive of the root filesystem.
    #[arg(long)]
    pub(crate) archive: PathBuf,
    /// The function's folder.
    #[arg(long)]
    pub(crate) folder: PathBuf,
    /// The function's language.
    #[arg(long, value_enum)]
    pub(crate) language: Language,
    /// Memory that it touches, MiB.
    #[arg(long)]
    pub(crate) mib: u32,
}

struct Peers {
    function: Function,
    checkpoint: Option<Checkpoint>,
    dumps: Dumps,
    crun: Option<Containers>,
    runc: Option<Containers>,
    podman: Option<Podman>,
    // Killed when dropped.
    _direct: Option<Running>,
}

/// Serves until standard input ends.
pub(crate) async fn serve(args: &PeerHostArgs) -> Result<()> {
    for dir in [args.dir.as_path(), Path::new("/run")] {
        mount(Some("tmpfs"), dir, Some("tmpfs"), MsFlags::empty(), Some(TMPFS_SIZE))
            .with_context(|| format!("{}: no tmpfs can be mounted there", dir.display()))?;
    }
    let (peers, prepared) = prepare(args).await?;
    say(&prepared)?;
    for line in stdin().lock().lines() {
        let line = line.context("the orders cannot be read")?;
        let subject: Subject = serde_json::from_str(&line).with_context(|| format!("not an order: {line}"))?;
        say(&match peers.run(subject).await {
            Ok(ms) => Outcome::Done(Sample {
                ms,
                ..Sample::default()
            }),
            Err(error) => Outcome::Failed(format!("{error:#}")),
        })?;
    }
    Ok(())
}

fn say(what: &impl Serialize) -> Result<()> {
    let mut out = stdout().lock();
    serde_json::to_writer(&mut out, what).context("the outcome cannot be written")?;
    out.write_all(b"\n")
        .and_then(|()| out.flush())
        .context("the outcome cannot be written")
}

async fn prepare(args: &PeerHostArgs) -> Result<(Peers, Prepared)> {
    let (language, mib) = (args.language, args.mib);
    let function = Function::unpacked(&args.dir, &args.archive, &args.folder, Workload { language, mib })?;
    let mut prepared = Prepared::default();
    let wants = |s: Subject| args.subjects.contains(&s);

    let mut direct = None;
    if wants(Subject::Direct) {
        let started = start_direct(&function).await;
        if let Some((running, port)) = prepared.keep(&[Subject::Direct], started) {
            direct = Some(running);
            prepared.direct_port = Some(port);
        }
    }

    let mut checkpoint = None;
    let restores: Vec<Subject> = [Subject::Criu, Subject::LazyPages]
        .into_iter()
        .chain(Subject::ONLY_NAMED)
        .filter(|s| wants(*s) && !s.is_ours())
        .collect();
    if !restores.is_empty() {
        let taken = Checkpoint::take(&args.criu, &args.dir, &function, wants(Subject::CriuOnDisk)).await;
        checkpoint = prepared.keep(&restores, taken);
        if let Some(taken) = &checkpoint {
            prepared.versions.insert("CRIU".to_owned(), taken.version().to_owned());
        }
    }

    let mut containers = [None, None];
    for (n, (subject, program)) in [(Subject::Crun, "crun"), (Subject::Runc, "runc")]
        .into_iter()
        .enumerate()
    {
        if wants(subject) {
            let tried = Containers::prepare(program, &args.dir, &function).await;
            containers[n] = prepared.keep(&[subject], tried);
            if let Some(tried) = &containers[n] {
                prepared.versions.insert(program.to_owned(), tried.version().to_owned());
            }
        }
    }
    let [crun, runc] = containers;
    let podman = podman(args, &function, &mut prepared).await;
    Ok((
        Peers {
            function,
            checkpoint,
            dumps: Dumps::of(&args.criu, &args.dir),
            crun,
            runc,
            podman,
            _direct: direct,
        },
        prepared,
    ))
}

async fn podman(args: &PeerHostArgs, function: &Function, prepared: &mut Prepared) -> Option<Podman> {
    let wanted = [Subject::Podman, Subject::PodmanRestore].into_iter();
    let wanted: Vec<Subject> = wanted.filter(|s| args.subjects.contains(s)).collect();
    if wanted.is_empty() {
        return None;
    }
    let tried = Podman::prepare(&args.dir, &args.archive, &args.criu, function).await;
    let mut podman = prepared.keep(&wanted, tried)?;
    prepared
        .versions
        .insert("podman".to_owned(), podman.version().to_owned());
    if wanted.contains(&Subject::PodmanRestore) {
        let taken = podman.checkpoint().await;
        prepared.keep(&[Subject::PodmanRestore], taken);
    }
    Some(podman)
}

/// Sends enough requests that it is as warm as an instance after its warm-up.
async fn start_direct(function: &Function) -> Result<(Running, u16)> {
    let port = free_port();
    let mut running = Running::start(&mut function.command(port)?)?;
    let mut connection = Connection::open_when_listening(port, || running.still_runs()).await?;
    for _ in 0..3 {
        connection.call(Method::GET, "/", &[]).await?.of_function()?;
    }
    Ok((running, port))
}

impl Peers {
    /// Milliseconds from the trigger to the last byte of the first response; for a dump, to its end.
    async fn run(&self, subject: Subject) -> Result<f64> {
        let absent = || format!("{} was not prepared", subject.name());
        match subject {
            Subject::Plain => self.plain().await,
            Subject::Crun => self.crun.as_ref().with_context(absent)?.start().await,
            Subject::Runc => self.runc.as_ref().with_context(absent)?.start().await,
            Subject::Podman => self.podman.as_ref().with_context(absent)?.start().await,
            Subject::PodmanRestore => self.podman.as_ref().with_context(absent)?.restore().await,
            Subject::Criu
            | Subject::LazyPages
            | Subject::CriuLogged
            | Subject::CriuUnprobed
            | Subject::CriuOnDisk
            | Subject::CriuWaiting => {
                let mode = match subject {
                    Subject::LazyPages => RestoreMode::Lazy,
                    Subject::CriuLogged => RestoreMode::Logged,
                    Subject::CriuUnprobed => RestoreMode::Unprobed,
                    Subject::CriuOnDisk => RestoreMode::OnDisk,
                    Subject::CriuWaiting => RestoreMode::Prestarted,
                    _ => RestoreMode::Eager,
                };
                self.checkpoint.as_ref().with_context(absent)?.restore(mode).await
            }
            Subject::CriuDump => self.dumps.by_command(&self.function).await,
            Subject::CriuDumpWaiting => self.dumps.by_one_that_waits(&self.function).await,
            Subject::Booted
            | Subject::Restored
            | Subject::Parked
            | Subject::Fresh
            | Subject::Warm
            | Subject::Direct => {
                bail!(absent())
            }
        }
    }

    async fn plain(&self) -> Result<f64> {
        let port = free_port();
        let mut command = self.function.command(port)?;
        let triggered = Instant::now();
        let mut running = Running::start(&mut command)?;
        let mut connection = Connection::open_when_listening(port, || running.still_runs()).await?;
        let answer = connection.call(Method::GET, "/", &[]).await?;
        let ms = triggered.elapsed().as_secs_f64() * 1_000.0;
        answer.of_function()?;
        Ok(ms)
    }
}

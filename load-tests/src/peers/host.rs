//! `rekindle-bench peer-host`: pid 1 of the peers' namespaces. Prepares, says so, then runs what each line of standard input
//! names, one at a time, until it is closed.

use std::io::{BufRead as _, Write as _, stdin, stdout};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use http::Method;
use nix::mount::{MsFlags, mount};
use serde::Serialize;

use super::checkpoint::{Checkpoint, Paging};
use super::function::{Function, Running};
use super::{Outcome, Prepared};
use crate::args::PeerHostArgs;
use crate::client::Connection;
use crate::subject::{Sample, Subject};

/// Enough for the images; it is filled only with what is written.
const TMPFS_SIZE: &str = "size=2g,mode=0755";

struct Peers {
    function: Function,
    checkpoint: Option<Checkpoint>,
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
    let function = Function::copied_to(&args.dir)?;
    let mut prepared = Prepared {
        python: function.interpreter(),
        ..Prepared::default()
    };
    let wants = |s: Subject| args.subjects.contains(&s);

    let mut direct = None;
    if wants(Subject::Direct) {
        match start_direct(&function).await {
            Ok((running, port)) => {
                direct = Some(running);
                prepared.direct_port = Some(port);
            }
            Err(error) => {
                prepared.missing.insert(Subject::Direct, format!("{error:#}"));
            }
        }
    }

    let mut checkpoint = None;
    let restores: Vec<Subject> = [Subject::Criu, Subject::LazyPages]
        .into_iter()
        .filter(|s| wants(*s))
        .collect();
    if !restores.is_empty() {
        match Checkpoint::take(&args.criu, &args.dir, &function).await {
            Ok(taken) => {
                prepared.criu = Some(taken.version().to_owned());
                checkpoint = Some(taken);
            }
            Err(error) => prepared
                .missing
                .extend(restores.into_iter().map(|s| (s, format!("{error:#}")))),
        }
    }
    Ok((
        Peers {
            function,
            checkpoint,
            _direct: direct,
        },
        prepared,
    ))
}

/// Enough requests that it is as warm as an instance after its warm-up.
async fn start_direct(function: &Function) -> Result<(Running, u16)> {
    let port = function.free_port()?;
    let mut running = Running::start(&mut function.command(port))?;
    let mut connection = Connection::open_when_listening(port, || running.still_runs()).await?;
    for _ in 0..3 {
        connection.call(Method::GET, "/", &[]).await?.of_function()?;
    }
    Ok((running, port))
}

impl Peers {
    /// Milliseconds from the trigger to the last byte of the first response.
    async fn run(&self, subject: Subject) -> Result<f64> {
        match (subject, &self.checkpoint) {
            (Subject::Plain, _) => self.plain().await,
            (Subject::Criu, Some(checkpoint)) => checkpoint.restore(Paging::Eager).await,
            (Subject::LazyPages, Some(checkpoint)) => checkpoint.restore(Paging::Lazy).await,
            (other, _) => bail!("{} was not prepared", other.name()),
        }
    }

    async fn plain(&self) -> Result<f64> {
        let port = self.function.free_port()?;
        let mut command = self.function.command(port);
        let triggered = Instant::now();
        let mut running = Running::start(&mut command)?;
        let mut connection = Connection::open_when_listening(port, || running.still_runs()).await?;
        let answer = connection.call(Method::GET, "/", &[]).await?;
        let ms = triggered.elapsed().as_secs_f64() * 1_000.0;
        answer.of_function()?;
        Ok(ms)
    }
}

//! The peers, against which we are measured. They are started by a child of ours (`host`) that is pid 1 of a pid
//! namespace, where the pids of a checkpoint are always free. It has a mount namespace with tmpfs for CRIU's images and
//! for its kernel probe (`/run/criu.kdat`), which makes CRIU fastest. It receives its orders in JSON lines, and does
//! the timing itself.

mod checkpoint;
mod container;
mod dump;
mod function;
pub(crate) mod host;
mod podman;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use http::Method;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::args::Args;
use crate::client::Connection;
use crate::subject::{Sample, Subject};
use crate::workload::Workload;

/// Limit to prepare the peers, and for one run.
const LIMIT: Duration = Duration::from_secs(240);

/// The host's report once it has prepared everything.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Prepared {
    /// The programs' versions, as they report them.
    pub(crate) versions: BTreeMap<String, String>,
    /// Port of the process that is asked directly.
    pub(crate) direct_port: Option<u16>,
    /// Peers that cannot be measured, and why.
    pub(crate) missing: BTreeMap<Subject, String>,
}

impl Prepared {
    /// Returns what could be prepared; otherwise records the subjects as missing, with the reason.
    fn keep<T>(&mut self, subjects: &[Subject], prepared: Result<T>) -> Option<T> {
        let missing = match prepared {
            Ok(prepared) => return Some(prepared),
            Err(error) => format!("{error:#}"),
        };
        self.missing.extend(subjects.iter().map(|s| (*s, missing.clone())));
        None
    }
}

/// The host's answer to the name of a subject.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Outcome {
    Done(Sample),
    Failed(String),
}

/// The peers, or why there are none.
pub(crate) struct Peers {
    host: Option<Host>,
    prepared: Prepared,
    direct: Option<Connection>,
}

struct Host {
    child: Child,
    orders: ChildStdin,
    outcomes: Lines<BufReader<ChildStdout>>,
    // The mount point of the child's tmpfs.
    _dir: TempDir,
}

impl Peers {
    /// Prepares the chosen ones. Those that are not available are reported as missing.
    pub(crate) async fn start(args: &Args, chosen: &[Subject], workload: Workload, folder: &Path) -> Self {
        let subjects: Vec<Subject> = chosen.iter().copied().filter(|s| !s.is_ours()).collect();
        if subjects.is_empty() {
            return Self {
                host: None,
                prepared: Prepared::default(),
                direct: None,
            };
        }
        match Host::start(args, &subjects, workload, folder).await {
            Ok((host, prepared)) => Self {
                host: Some(host),
                prepared,
                direct: None,
            },
            Err(error) => {
                let missing = subjects.into_iter().map(|s| (s, format!("{error:#}"))).collect();
                Self {
                    host: None,
                    prepared: Prepared {
                        missing,
                        ..Prepared::default()
                    },
                    direct: None,
                }
            }
        }
    }

    /// The host's report.
    pub(crate) fn tell(&self) -> Prepared {
        self.prepared.clone()
    }

    /// Why a subject cannot be measured.
    pub(crate) fn missing(&self, subject: Subject) -> Option<&str> {
        self.prepared.missing.get(&subject).map(String::as_str)
    }

    /// One run. Whatever was started for it is gone when this returns.
    pub(crate) async fn run(&mut self, subject: Subject) -> Result<Sample> {
        if subject == Subject::Direct {
            return self.direct().await;
        }
        let host = self.host.as_mut().context("there are no peers")?;
        match host.order(subject).await? {
            Outcome::Done(sample) => Ok(sample),
            Outcome::Failed(why) => Err(anyhow!(why)),
        }
    }

    /// Measured here and not in the host, so that the client of a warm invocation and this one are the same.
    async fn direct(&mut self) -> Result<Sample> {
        let mut connection = match self.direct.take() {
            Some(connection) => connection,
            None => Connection::open(self.prepared.direct_port.context("no process to ask directly")?).await?,
        };
        let triggered = Instant::now();
        let answer = connection.call(Method::GET, "/", &[]).await?;
        let ms = triggered.elapsed().as_secs_f64() * 1_000.0;
        answer.of_function()?;
        self.direct = Some(connection);
        Ok(Sample {
            ms,
            ..Sample::default()
        })
    }

    /// The process that all of them descend from.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.host.as_ref()?.child.id()
    }

    /// Ends them all.
    pub(crate) fn stop(self) {
        if let Some(mut host) = self.host {
            // It may have ended; its namespace, with everything in it, ends with it.
            let _ended = host.child.start_kill();
        }
    }
}

impl Host {
    async fn start(args: &Args, subjects: &[Subject], workload: Workload, folder: &Path) -> Result<(Self, Prepared)> {
        let archive = workload.root_archive(&args.cache)?;
        let dir = tempfile::Builder::new()
            .prefix("rekindle-peers-")
            .tempdir()
            .context("no temporary directory")?;
        let own = std::env::current_exe().context("the path of this program is not known")?;
        let names: Vec<&str> = subjects.iter().map(|s| s.name()).collect();
        let mut child = Command::new("unshare")
            .args(["--pid", "--mount", "--mount-proc", "--fork", "--kill-child", "--"])
            .arg(own)
            .arg("peer-host")
            .args(["--subjects", &names.join(",")])
            .arg("--criu")
            .arg(&args.criu)
            .arg("--dir")
            .arg(dir.path())
            .arg("--archive")
            .arg(archive)
            .arg("--folder")
            .arg(folder)
            .args([
                "--language",
                workload.language.name(),
                "--mib",
                &workload.mib.to_string(),
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("unshare (util-linux) cannot be started")?;
        let orders = child
            .stdin
            .take()
            .context("the host of the peers has no standard input")?;
        let outcomes = child
            .stdout
            .take()
            .context("the host of the peers has no standard output")?;
        let mut host = Self {
            child,
            orders,
            outcomes: BufReader::new(outcomes).lines(),
            _dir: dir,
        };
        let prepared = host
            .answer()
            .await
            .context("the peers cannot be prepared (see above; are you root?)")?;
        Ok((host, prepared))
    }

    async fn order(&mut self, subject: Subject) -> Result<Outcome> {
        let mut line = serde_json::to_string(&subject).context("not an order")?;
        line.push('\n');
        self.orders
            .write_all(line.as_bytes())
            .await
            .context("the host of the peers takes no order")?;
        self.answer().await
    }

    async fn answer<T: serde::de::DeserializeOwned>(&mut self) -> Result<T> {
        let line = match tokio::time::timeout(LIMIT, self.outcomes.next_line()).await {
            Ok(line) => line.context("the host of the peers cannot be read")?,
            Err(_) => bail!("the host of the peers does not answer within {LIMIT:?}"),
        };
        let line = line.context("the host of the peers has ended")?;
        serde_json::from_str(&line).with_context(|| format!("the host of the peers says: {line}"))
    }
}

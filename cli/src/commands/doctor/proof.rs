//! The proof of CRIU. `criu check` is none: CRIU 4.1 says "Looks good" on kernels where it cannot dump a process with a
//! TCP socket. A process with memory and a listening socket is checkpointed, then restored twice: once eagerly
//! and once through our pager. After each restore it must answer on its port with the sum that its memory had before.
//! In the second restore every page with content must have come from the pager. Every wait has a limit, and whatever
//! was started is gone at the end.

use std::fs;
use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::unistd::Pid;
use tempfile::TempDir;

use super::Check;
use super::bounded::{end_of, run_bounded};
use super::criu::{Criu, FIX};
use super::dumped::DumpedMemory;
use super::paging::Paging;
use super::process::{Restored, Target};
use super::target;
use crate::show::{self, Steps};

const LIMIT: Duration = Duration::from_secs(20);
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
const TARGET_MIB: u64 = 16;
/// The fault may be CRIU's or the kernel's.
const PAGER_FIX: &str = "run scripts/install-criu.sh /usr/local/lib/rekindle/criu, or name a working one with \
--criu; if \
                         that fails here too, use a kernel whose userfaultfd works (`fn doctor` says what it has). \
                         Nothing can be restored on this machine until then";

/// Checkpoints a process, restores it eagerly, and restores it through our pager.
pub(super) fn prove(criu: &Criu, steps: &Steps) -> Vec<Check> {
    const CHECKPOINT: &str = "checkpoint";
    const EAGER: &str = "eager restore";
    const LAZY: &str = "lazy restore";
    steps.step("checkpointing a process that listens and has memory");
    let checkpoint = match Checkpoint::take(criu) {
        Ok(checkpoint) => checkpoint,
        Err(e) => return vec![Check::lack(CHECKPOINT, format!("{e:#}"), FIX)],
    };
    let mut checks = vec![Check::ok(
        CHECKPOINT,
        format!(
            "{} and a listening socket in {}",
            show::bytes(checkpoint.memory),
            show::duration(checkpoint.took)
        ),
    )];
    steps.step("restoring it eagerly");
    checks.push(match checkpoint.restore_eagerly(criu) {
        Ok(took) => Check::ok(EAGER, format!("same memory, same port, in {}", show::duration(took))),
        Err(e) => Check::lack(EAGER, format!("{e:#}"), FIX),
    });
    steps.step("restoring it through the pager");
    checks.push(match checkpoint.restore_through_pager(criu) {
        Ok(PagedRestore { took, pages }) => Check::ok(
            LAZY,
            format!(
                "same memory, same port, in {}; {pages} pages through the pager",
                show::duration(took)
            ),
        ),
        Err(e) => Check::lack(LAZY, format!("{e:#}"), PAGER_FIX),
    });
    checks
}

/// A checkpoint of the target; its directory is removed when this is dropped.
#[derive(Debug)]
pub(super) struct Checkpoint {
    dir: TempDir,
    pid: Pid,
    port: u16,
    sum: String,
    /// Memory that the target had filled, bytes.
    pub(super) memory: u64,
    /// Duration of the dump.
    pub(super) took: Duration,
}

/// A restore through the pager.
#[derive(Debug)]
pub(super) struct PagedRestore {
    /// Time until the process runs.
    pub(super) took: Duration,
    /// Pages that came through the pager by the time it had answered.
    pub(super) pages: u64,
}

impl Checkpoint {
    /// Starts the target and checkpoints it, which kills it.
    pub(super) fn take(criu: &Criu) -> Result<Self> {
        // Restored processes lose their parent; as their subreaper we can wait for them.
        nix::sys::prctl::set_child_subreaper(true).context("not a subreaper")?;
        let dir = tempfile::Builder::new()
            .prefix("rekindle-doctor-")
            .tempdir()
            .context("no temporary directory")?;
        let ready = dir.path().join("ready");
        let mut target = Target::start(&ready, TARGET_MIB)?;
        let pid = target.pid();
        let port = target.port(&ready)?;
        let sum = ask(port).context("the process to checkpoint does not answer")?;
        let images = dir.path().join("images");
        fs::create_dir(&images).context("no directory for the images")?;
        let started = Instant::now();
        let mut command = criu_command(criu, "dump", dir.path(), &images);
        command.args(["--tree", &pid.to_string()]);
        run_criu(&mut command, dir.path(), "dump").context("criu dump failed")?;
        let took = started.elapsed();
        target.reap()?;
        Ok(Self {
            dir,
            pid,
            port,
            sum,
            memory: TARGET_MIB << 20,
            took,
        })
    }

    fn images(&self) -> PathBuf {
        self.dir.path().join("images")
    }

    /// Restores with every page in place before the process runs.
    pub(super) fn restore_eagerly(&self, criu: &Criu) -> Result<Duration> {
        self.restore(criu, &self.images(), &[])
    }

    /// Restores from images without lazy memory, as a worker does: what the process then reads there came from our
    /// pager.
    pub(super) fn restore_through_pager(&self, criu: &Criu) -> Result<PagedRestore> {
        let memory = DumpedMemory::read(&self.images(), self.pid.as_raw())?;
        let images = self.dir.path().join("eager-images");
        memory.write_eager_images(&self.images(), &images)?;
        let paging = Paging::start(memory, self.dir.path(), LIMIT)?;
        let restored = self.restore(criu, &images, &["--lazy-pages"]);
        let pages = paging.finish()?;
        let took = restored.with_context(|| format!("through the pager came {pages} pages"))?;
        let filled = target::filled_pages(self.memory);
        if pages < filled {
            bail!(
                "only {pages} of at least {filled} pages came through the pager: this CRIU does not leave memory to \
                 whoever listens on lazy-pages.socket"
            );
        }
        Ok(PagedRestore { took, pages })
    }

    fn restore(&self, criu: &Criu, images: &Path, options: &[&str]) -> Result<Duration> {
        let started = Instant::now();
        let mut command = criu_command(criu, "restore", self.dir.path(), images);
        command.arg("--restore-detached").args(options);
        let restored = run_criu(&mut command, self.dir.path(), "restore");
        let _gone = Restored(self.pid);
        restored.context("criu restore failed")?;
        let took = started.elapsed();
        let sum = ask(self.port).context("the restored process does not answer on its port")?;
        if sum != self.sum {
            bail!(
                "the restored process has other memory: sum {sum}, before the checkpoint {}",
                self.sum
            );
        }
        Ok(took)
    }
}

/// A criu command with the options common to all of ours.
fn criu_command(criu: &Criu, action: &str, dir: &Path, images: &Path) -> Command {
    let mut command = Command::new(&criu.path);
    command
        .arg(action)
        .arg("--images-dir")
        .arg(images)
        .arg("--work-dir")
        .arg(dir)
        .args(["--manage-cgroups=ignore", "--network-lock=skip", "-v1"]);
    command
}

/// Runs the command; if it fails, the error has its log.
fn run_criu(command: &mut Command, dir: &Path, name: &str) -> Result<()> {
    let log = format!("{name}.log");
    command.args(["--log-file", &log]);
    match run_bounded(command, LIMIT, &dir.join(format!("{name}.out"))) {
        Ok(_) => Ok(()),
        Err(e) => {
            let told = fs::read_to_string(dir.join(log)).unwrap_or_default();
            Err(e.context(end_of(&told).to_owned()))
        }
    }
}

/// Connects to the process and reads its sum.
fn ask(port: u16) -> Result<String> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream =
        TcpStream::connect_timeout(&address, ANSWER_LIMIT).with_context(|| format!("{address}: no connection"))?;
    stream
        .set_read_timeout(Some(ANSWER_LIMIT))
        .context("no time limit on the answer")?;
    let mut sum = String::new();
    stream
        .read_to_string(&mut sum)
        .with_context(|| format!("{address}: no answer"))?;
    if sum.trim().len() != 16 {
        bail!("{address}: half an answer: \"{}\"", sum.trim());
    }
    Ok(sum.trim().to_owned())
}

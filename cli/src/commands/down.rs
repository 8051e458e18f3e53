//! `fn down`: stops the platform and removes what a killed one may have left. It does not touch the data.

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::Signal;

use crate::args::DownArgs;
use crate::show::{self, Steps};
use crate::up::layout::Layout;
use crate::up::leftovers;
use crate::up::pid::{PidFile, Running};

const POLL: Duration = Duration::from_millis(20);
/// A killed process is gone as soon as the kernel has run it once more.
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// Stops the platform of this run directory, if one runs, and cleans up.
pub(crate) fn run(args: &DownArgs) -> Result<ExitCode> {
    let layout = Layout::of(&args.places).context("the current directory is gone")?;
    let pid_file = PidFile::at(&layout.run);
    let running = pid_file.running()?;
    if let Some(running) = &running {
        stop(running, Duration::from_secs(args.wait))?;
    }
    if !layout.run.exists() {
        say!("rekindle was not running");
        return Ok(ExitCode::SUCCESS);
    }
    let Some(_lock) = pid_file.lock()? else {
        bail!(
            "{}: a platform is just starting there, or `fn worker` runs there: try again in a moment, or stop the \
             worker",
            layout.run.display()
        );
    };
    let swept = leftovers::sweep(&layout)?;
    pid_file.forget()?;
    match running {
        Some(running) => say!("rekindle is down, pid {} has ended", running.pid),
        None => say!("rekindle was not running"),
    }
    if swept.processes + swept.cgroups > 0 {
        say!(
            "  removed what it had left: {}, {}",
            show::count(swept.processes, "process"),
            show::count(swept.cgroups, "cgroup")
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Asks it to stop, and kills it if it does not within `limit`.
fn stop(running: &Running, limit: Duration) -> Result<()> {
    let steps = Steps::new(false);
    steps.step(format!("stopping pid {}", running.pid));
    running.signal(Signal::SIGTERM)?;
    if !gone_within(running, limit) {
        steps.note(&format!(
            "pid {} did not stop within {limit:?} and is killed",
            running.pid
        ));
        running.signal(Signal::SIGKILL)?;
        if !gone_within(running, KILL_LIMIT) {
            bail!(
                "pid {} cannot be killed: look at /proc/{}/stack",
                running.pid,
                running.pid
            );
        }
    }
    steps.finish();
    Ok(())
}

fn gone_within(running: &Running, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    while running.alive() {
        if Instant::now() > deadline {
            return false;
        }
        thread::sleep(POLL);
    }
    true
}

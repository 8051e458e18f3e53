//! `fn up` without `--foreground`: starts itself again in a session of its own, with its output in a log file, and
//! waits until the platform is ready. The other process reports its progress through a small file.

use std::fs::{self, DirBuilder, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::Signal;

use super::layout::Layout;
use super::pid::{PidFile, Running};
use super::traces;
use crate::args::UpArgs;
use crate::client::Client;
use crate::show::{self, Steps, Tone};

const POLL: Duration = Duration::from_millis(50);
/// Number of log lines that an error shows.
const LOG_LINES: usize = 12;
const LOG_READ_MAX: u64 = 16 << 10;
/// A larger log is rotated at a start; one earlier log is kept.
const LOG_KEEP_MAX: u64 = 64 << 20;

/// Starts the platform, or reports that it runs.
pub(super) fn run(args: &UpArgs, layout: &Layout) -> Result<ExitCode> {
    let pid_file = PidFile::at(&layout.run);
    if let Some(running) = pid_file.running()? {
        return already(&running, args, layout);
    }
    let started = Instant::now();
    let steps = Steps::new(false);
    steps.step("starting");
    let log_from = open_log(layout)?.1;
    // A killed platform leaves its last one.
    let _older = fs::remove_file(layout.phase());
    let mut child = spawn(layout)?;
    let outcome = wait_until_ready(args, layout, &mut child, &steps);
    steps.finish();
    if let Err(error) = outcome {
        stop(&pid_file, &mut child);
        let log = log_tail(layout, log_from);
        bail!(
            "the platform did not start: {error:#}; the end of {}:\n{log}",
            layout.log().display()
        );
    }
    say!(
        "rekindle is {} at {}, after {}",
        show::tinted("up", Tone::Good),
        address(args.listen),
        show::duration(started.elapsed())
    );
    say!("  admin key  {}", layout.data.join("admin.key").display());
    say!("  log        {}", layout.log().display());
    if let Some(endpoint) = &args.traces {
        say!("  traces     {}", traces::tell(endpoint));
    }
    Ok(ExitCode::SUCCESS)
}

/// Handles a platform that already runs. The same one needs nothing; a request for something else is an error.
fn already(running: &Running, args: &UpArgs, layout: &Layout) -> Result<ExitCode> {
    if running.listen != args.listen || running.data != layout.data {
        bail!(
            "pid {} runs already in {} with the data in {} and listens at {}: stop it with `fn down`, or choose \
             another --run",
            running.pid,
            layout.run.display(),
            running.data.display(),
            running.listen
        );
    }
    say!(
        "rekindle is already running at {}, pid {}",
        address(running.listen),
        running.pid
    );
    if fs::read_link(format!("/proc/{}/exe", running.pid))
        .is_ok_and(|exe| exe.to_string_lossy().ends_with(" (deleted)"))
    {
        say!("  it is an older build: `fn down`, then `fn up` starts the new one");
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens the log for appending. Returns its length before this start.
fn open_log(layout: &Layout) -> Result<(File, u64)> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&layout.data)
        .with_context(|| {
            format!(
                "{}: the directory cannot be made: run fn up as root",
                layout.data.display()
            )
        })?;
    let path = layout.log();
    if fs::metadata(&path).is_ok_and(|m| m.len() > LOG_KEEP_MAX) {
        fs::rename(&path, path.with_extension("log.1"))
            .with_context(|| format!("{}: cannot be set aside", path.display()))?;
    }
    let log = File::options()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(&path)
        .with_context(|| format!("{}: the log cannot be opened", path.display()))?;
    let length = log
        .metadata()
        .with_context(|| format!("{}: the log cannot be read", path.display()))?
        .len();
    Ok((log, length))
}

/// Runs the same command line with `--foreground`. The new process first leaves the terminal's session, so that neither
/// ^C nor the terminal's end reaches it.
fn spawn(layout: &Layout) -> Result<Child> {
    let own = std::env::current_exe().context("the path of this program is not known")?;
    let log = open_log(layout)?.0;
    let errors = log.try_clone().context("no more file descriptors")?;
    Command::new(own)
        .args(std::env::args_os().skip(1))
        .args(["--foreground", "--detached"])
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .spawn()
        .context("the platform's process cannot be started")
}

fn wait_until_ready(args: &UpArgs, layout: &Layout, child: &mut Child, steps: &Steps) -> Result<()> {
    let client = Client::with_key(&address(args.listen), None)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the async runtime could not be started")?;
    let deadline = Instant::now() + Duration::from_secs(args.wait);
    let pid_file = PidFile::at(&layout.run);
    let mut shown = String::new();
    loop {
        if let Some(status) = child.try_wait().context("the platform's end cannot be awaited")? {
            bail!("it ended: {status}");
        }
        let phase = fs::read_to_string(layout.phase()).unwrap_or_default();
        if !phase.is_empty() && phase != shown {
            steps.step(phase.as_str());
            shown = phase;
        }
        let ours = matches!(pid_file.running()?, Some(r) if u32::try_from(r.pid) == Ok(child.id()));
        if ours && runtime.block_on(client.ready()) {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!(
                "it is not ready after {} s, last at \"{shown}\": wait longer with --wait",
                args.wait
            );
        }
        thread::sleep(POLL);
    }
}

/// Ends a start that failed, and waits for it, so that nothing of it remains.
fn stop(pid_file: &PidFile, child: &mut Child) {
    let deadline = Instant::now() + Duration::from_secs(10);
    if let Ok(Some(running)) = pid_file.running()
        && u32::try_from(running.pid) == Ok(child.id())
    {
        // It may have ended meanwhile, which is fine.
        let _ended = running.signal(Signal::SIGTERM);
    }
    while Instant::now() < deadline {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        thread::sleep(POLL);
    }
    let _ended = child.kill();
    let _reaped = child.wait();
}

/// The last lines that this start wrote.
fn log_tail(layout: &Layout, from: u64) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = File::open(layout.log())?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(from.max(length.saturating_sub(LOG_READ_MAX))))?;
        let mut bytes = Vec::new();
        file.take(LOG_READ_MAX).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES)..]
        .iter()
        .map(|l| format!("  {l}"))
        .collect::<Vec<_>>()
        .join("\n")
}

/// The URL at which this machine reaches its gateway.
pub(crate) fn address(listen: SocketAddr) -> String {
    let ip = match listen.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    };
    format!("http://{}", SocketAddr::new(ip, listen.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_on_every_address_is_reached_over_loopback() {
        assert_eq!(address("0.0.0.0:80".parse().unwrap()), "http://127.0.0.1:80");
        assert_eq!(address("[::]:80".parse().unwrap()), "http://[::1]:80");
        assert_eq!(address("10.0.0.7:80".parse().unwrap()), "http://10.0.0.7:80");
    }
}

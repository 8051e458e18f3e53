//! Commands with a time limit: nothing that the proof starts may make it wait forever.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

/// How much of a command's output an error message can hold.
const TOLD_MAX: usize = 600;

/// Runs `command` until it ends or `limit` is over. Returns its output, which is kept in `log`.
pub(super) fn run_bounded(command: &mut Command, limit: Duration, log: &Path) -> Result<String> {
    let mut out = File::options()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(log)
        .with_context(|| format!("{}: cannot be made", log.display()))?;
    let err = out.try_clone().context("no more file descriptors")?;
    let stdout = out.try_clone().context("no more file descriptors")?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(err)
        .spawn()
        .context("it cannot be run")?;
    let status = wait(&mut child, limit)?;
    let mut text = String::new();
    out.seek(SeekFrom::Start(0)).context("its output cannot be read")?;
    out.take(1 << 20)
        .read_to_string(&mut text)
        .context("its output is not text")?;
    match status {
        Some(status) if status.success() => Ok(text),
        Some(status) => bail!("{status}: {}", end_of(&text)),
        None => bail!("not done within {limit:?}: {}", end_of(&text)),
    }
}

/// Waits for a child. If the limit is over first, kills it and returns `None`.
pub(super) fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait().context("its end cannot be awaited")? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            child.kill().context("it cannot be killed")?;
            child.wait().context("its end cannot be awaited")?;
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// As much of the end as an error message can hold.
pub(super) fn end_of(text: &str) -> &str {
    let text = text.trim();
    let mut from = text.len().saturating_sub(TOLD_MAX);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    &text[from..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_hangs_is_killed_at_its_limit() {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo before; exec sleep 600"]);
        let error = run_bounded(&mut command, Duration::from_millis(200), &dir.path().join("log")).unwrap_err();
        assert!(error.to_string().contains("not done within"), "{error}");
        assert!(error.to_string().contains("before"), "{error}");
    }

    #[test]
    fn what_a_failing_command_said_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo reason >&2; exit 7"]);
        let error = run_bounded(&mut command, Duration::from_secs(20), &dir.path().join("log"))
            .unwrap_err()
            .to_string();
        assert_eq!(error, "exit status: 7: reason");
    }
}

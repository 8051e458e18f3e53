//! Child processes: those that are measured, and those that keep the cores busy meanwhile.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

/// A `pager-process`, killed when dropped.
pub(crate) struct Restored {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Restored {
    /// Starts this program with these arguments.
    pub(crate) fn start(args: &[String]) -> Result<Self> {
        let mut child = Command::new("/proc/self/exe")
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("the process cannot be started")?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("the process has no pipes");
        };
        let output = BufReader::new(output);
        Ok(Self { child, input, output })
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// The next line of its output.
    pub(crate) fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        ensure!(self.output.read_line(&mut line)? > 0, "the process ended early");
        Ok(line.trim_end().to_owned())
    }

    /// Lets it begin.
    pub(crate) fn go(&mut self) -> Result<()> {
        self.input
            .write_all(b"go\n")
            .context("the process cannot be told to go")
    }

    /// Waits for its end, which must be successful.
    pub(crate) fn end(mut self) -> Result<()> {
        let status = self.child.wait()?;
        ensure!(status.success(), "the process failed: {status}");
        Ok(())
    }
}

impl Drop for Restored {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Processes that keep every core busy, until dropped.
pub(super) struct Busy(Vec<Child>);

impl Busy {
    pub(super) fn start(cores: usize) -> Result<Self> {
        let mut busy = Self(Vec::new());
        for _ in 0..cores {
            let child = Command::new("/bin/sh").args(["-c", "while :; do :; done"]).spawn();
            busy.0.push(child.context("/bin/sh cannot be started")?);
        }
        Ok(busy)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

//! A master key that a command prints: it is kept where that command gets it from, such as a cloud's key service, and
//! nowhere on this host.

use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// How long the command may take.
const LIMIT: Duration = Duration::from_secs(60);
/// How often it is looked after.
const PAUSE: Duration = Duration::from_millis(10);
/// Maximum number of bytes that it may print.
const PRINTED_MAX: u64 = 4 << 10;

/// What a shell command prints, without white space around it. Its errors go to standard error. It may ask something at
/// the terminal, if there is one. Blocks.
pub(super) fn printed(command: &str) -> Result<String> {
    printed_within(command, LIMIT, may_read_a_terminal())
}

/// Whether this program is in the foreground of a terminal.
fn may_read_a_terminal() -> bool {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let fields: Vec<&str> = fields.split_whitespace().collect();
    // State, parent, group, session, terminal, the group in the terminal's foreground.
    matches!(fields[..], [_, _, own, _, _, foreground, ..] if own == foreground)
}

fn printed_within(command: &str, limit: Duration, has_terminal: bool) -> Result<String> {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).stdin(Stdio::null()).stdout(Stdio::piped());
    // In a group of its own, what it has started ends with it. A terminal stops such a group when it reads.
    if !has_terminal {
        shell.process_group(0);
    }
    let child = shell.spawn();
    let mut child = child.context("the command of --master-key-command cannot be run")?;
    // What it has left running may keep its output open.
    let (sender, receiver) = mpsc::channel();
    if let Some(printed) = child.stdout.take() {
        std::thread::spawn(move || {
            let mut text = String::new();
            let read = printed.take(PRINTED_MAX + 1).read_to_string(&mut text);
            sender.send(read.map(|_| text))
        });
    }
    let until = Instant::now() + limit;
    let status = loop {
        match child
            .try_wait()
            .context("the command of --master-key-command cannot be waited for")?
        {
            Some(status) => break status,
            None if Instant::now() >= until => {
                end(&mut child, has_terminal);
                bail!("the command of --master-key-command has not ended after {limit:?}: run it by hand");
            }
            None => std::thread::sleep(PAUSE),
        }
    };
    let read = receiver.recv_timeout(until.saturating_duration_since(Instant::now()));
    if matches!(&read, Ok(Ok(text)) if text.len() as u64 > PRINTED_MAX) {
        bail!("the command of --master-key-command prints more than a key: let it print nothing else");
    }
    if !status.success() {
        bail!("the command of --master-key-command failed ({status}): run it by hand");
    }
    let read = read.context("something that the command of --master-key-command started keeps its output open")?;
    let text = read.context("what the command of --master-key-command printed is no text")?;
    Ok(text.trim().to_owned())
}

/// Kills a command that takes too long, and what it has started, unless that is in our own group.
fn end(child: &mut Child, is_in_our_group: bool) {
    // It may have ended by now. Until it is waited for, nothing else has its id.
    match is_in_our_group {
        true => drop(child.kill()),
        false => drop(killpg(Pid::from_raw(child.id().cast_signed()), Signal::SIGKILL)),
    }
    drop(child.wait());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_s_output_is_the_key_unless_it_fails_or_hangs_or_says_too_much() {
        assert_eq!(printed("echo '  a key '; echo told >&2").unwrap(), "a key");
        let within = |command: &str, limit| {
            let error = printed_within(command, Duration::from_secs(limit), false).unwrap_err();
            format!("{error:#}")
        };
        let refused = |command: &str| within(command, 30);
        assert!(refused("echo a; exit 3").contains("failed"));
        assert!(refused("head -c 9000 /dev/zero | tr '\\0' a").contains("more than a key"));
        assert!(refused("printf '\\377'").contains("no text"));
        assert!(within("exec sleep 30", 1).contains("not ended"));
        let pid = std::env::temp_dir().join(format!("rekindle-key-command-{}", std::process::id()));
        let hangs = format!("sleep 300 & echo $! > {}; wait", pid.display());
        assert!(within(&hangs, 1).contains("not ended"));
        let started = std::fs::read_to_string(&pid).unwrap();
        std::fs::remove_file(&pid).unwrap();
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", started.trim())).unwrap_or_default();
        let until = Instant::now() + LIMIT;
        // Whoever adopts it may be slow to reap it.
        while !state().is_empty() && !state().contains(") Z") {
            assert!(Instant::now() < until, "{}", state());
            std::thread::sleep(PAUSE);
        }
        assert!(within("sleep 6 & echo a", 2).contains("keeps its output open"));
    }

    #[test]
    fn a_command_may_ask_at_the_terminal_and_ends_alone_there() {
        let group = |has_terminal| {
            let printed = printed_within("cut -d ' ' -f 5 /proc/$$/stat", LIMIT, has_terminal).unwrap();
            Pid::from_raw(printed.parse().unwrap())
        };
        // The terminal lets its own group read, and stops others.
        assert_eq!(group(true), nix::unistd::getpgrp());
        assert_ne!(group(false), nix::unistd::getpgrp());
        let error = printed_within("exec sleep 30", Duration::from_secs(1), true).unwrap_err();
        assert!(error.to_string().contains("not ended"), "{error:#}");
    }
}

//! Says in a user's words why a function cannot be checkpointed: which process has what, and what to do about it. Where
//! in the images or in CRIU's log that was found is for the worker's log.

use nix::unistd::Pid;
use rekindle_criu::{CriuError, is_of_function};
use rekindle_verify::VerifyError;

use super::code_pages::UnreadableCodeError;
use super::quiesce::QuiesceError;
use super::semaphores::SemaphoreError;
use super::unix_names::UnixNameError;
use super::watches;
use crate::host::sandbox::{InnerProc, SandboxError};

/// What to do about a process that has outlived its parent.
const OF_ORPHANS: &str = "deploy the folder or image anew, and have the process there by then, for example by a \
                          warm-up request that starts it: all instances then start below a reaper, which adopts it. \
                          Or start it in the foreground, from a process that stays";

/// In what CRIU's log says of a watch.
const WATCHED: &str = "a file is watched (inotify)";

/// Returns why the processes below `init` cannot be dumped, if that is of the function's making. `log` is the cause
/// that was found in CRIU's log.
pub(super) fn of_dump(failure: &CriuError, log: &str, init: Pid) -> Option<String> {
    let CriuError::Stage(_, refused) = failure else {
        let told = log.strip_prefix("; ").unwrap_or(log);
        let of_watch = told
            .contains(WATCHED)
            .then(|| watches::of_kernel(init, &InnerProc::of(init).ok()?));
        let told = match of_watch.flatten() {
            Some(watch) => format!("{watch}: {told}"),
            None => told.to_owned(),
        };
        return is_of_function(log).then_some(told);
    };
    if let Some(refused) = refused.downcast_ref::<VerifyError>() {
        return (!matches!(refused, VerifyError::Read(..))).then(|| of_images(refused, init));
    }
    if let Some(refused) = refused.downcast_ref::<QuiesceError>() {
        return of_processes(refused);
    }
    if let Some(refused) = refused.downcast_ref::<UnixNameError>() {
        return refused.is_of_function().then(|| refused.to_string());
    }
    if let Some(refused) = refused.downcast_ref::<UnreadableCodeError>() {
        return Some(refused.to_string());
    }
    let refused = refused.downcast_ref::<SemaphoreError>()?;
    matches!(refused, SemaphoreError::Semaphore { .. }).then(|| refused.to_string())
}

/// Returns why the processes cannot be stopped for a checkpoint, if that is of the function's making.
pub(super) fn of_processes(refused: &QuiesceError) -> Option<String> {
    let QuiesceError::Strays(refused) = refused else {
        return None;
    };
    told_by_init(refused)
}

/// Returns what init has found in the way, and what to do about it.
pub(crate) fn told_by_init(refused: &SandboxError) -> Option<String> {
    let told = refused.of_function()?;
    Some(match refused.is_orphan() {
        true => format!("{told}; {OF_ORPHANS}"),
        false => told.to_owned(),
    })
}

/// Names the process that has what the images may not contain.
fn of_images(refused: &VerifyError, init: Pid) -> String {
    let what = refused.explanation();
    let Ok(proc) = InnerProc::of(init) else {
        return format!("the function has {what}");
    };
    let pid = refused.process();
    let pid = pid.or_else(|| holder(&proc, refused.open_path()?));
    let pid = pid.or_else(|| watches::watcher_of(init, &proc, refused.watched_path()?.trim_matches('"')));
    match pid {
        Some(pid) => format!("{} has {what}", proc.named(pid)),
        None => format!("the function has {what}"),
    }
}

/// Returns the first process that has the file at this path open. The path is quoted.
fn holder(proc: &InnerProc, path: &str) -> Option<u32> {
    /// More descriptors are not looked at.
    const LOOKS_MAX: usize = 4096;
    let mut pids = proc.pids().ok()?;
    pids.sort_unstable();
    let opened = pids.into_iter().flat_map(|pid| {
        let directory = proc.path().join(format!("{pid}/fd"));
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(move |entry| (pid, entry.path()))
    });
    let found = opened.take(LOOKS_MAX).find(|(_, descriptor)| {
        let target = std::fs::read_link(descriptor).unwrap_or_default();
        format!("{:?}", target.to_string_lossy()) == path
    });
    found.and_then(|(pid, _)| u32::try_from(pid).ok())
}

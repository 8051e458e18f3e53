//! Finds the cause of a CRIU failure in its log. The last message only says that it failed, and the first may be a
//! harmless one. So the whole log is searched.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use super::RESTORE_LOG;
use super::stage::CriuError;

/// Bytes of a log that are read. At the highest log level, the log of a large function has some hundred kilobytes.
const LOG_MAX: u64 = 8 << 20;

/// An error that CRIU logs on every host where it may not raise its own limits. It is harmless.
const LIMITS: &str = "Can't setup RLIMIT_NOFILE";
/// An error that a sandbox's CRIU logs at each restore, since it may not suspend filters. It goes on under them.
const FILTERS: &str = "suspending seccomp failed";

/// What CRIU was to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CriuOperation {
    Restore,
    Other,
}

impl CriuOperation {
    fn of_log(path: &Path) -> Self {
        match path.file_name().is_some_and(|name| name == RESTORE_LOG) {
            true => Self::Restore,
            false => Self::Other,
        }
    }

    fn fails_by(self, error: &str) -> bool {
        !error.contains(LIMITS) && (self != Self::Restore || !error.contains(FILTERS))
    }
}

/// What parts of CRIU's messages mean for a function, and what to do about them.
const FUNCTION_S: [(&str, &str); 23] = [
    (
        "Non-empty write queue on an in-flight socket",
        "a connection to a UNIX socket of the function was written to and is not accepted yet: accept it before the \
         snapshot",
    ),
    (
        "Found a closed in-flight socket",
        "a connection to a UNIX socket of the function was closed before it was accepted: accept it before the \
         snapshot",
    ),
    (
        "In-flight connection (l)",
        "a connection to a TCP port of the function is not accepted yet: accept it before the snapshot",
    ),
    (
        "Dangling connection",
        "a UNIX connection's other end was closed before it was accepted: close this end too before the snapshot",
    ),
    (
        "without peer",
        "a UNIX socket is connected to one that is closed or of no process here: close it before the snapshot",
    ),
    (
        "with unreachable peer",
        "a UNIX socket is connected to one without a name that is connected elsewhere: close it before the snapshot",
    ),
    (
        "Can't dump half of stream unix connection",
        "a UNIX connection's other end is in no process of the function: close it before the snapshot",
    ),
    (
        "Can't dump name-less external socket",
        "a UNIX socket's other end is in no process of the function: close it before the snapshot",
    ),
    (
        "Control messages in queue, not supported",
        "a message with credentials waits in a UNIX socket: receive it before the snapshot",
    ),
    (
        "More than 1 SCM is not possible",
        "a message with several control messages waits in a UNIX socket: receive it before the snapshot",
    ),
    (
        "The socket has data to read",
        "an answer waits in a netlink socket: receive it, or close the socket, before the snapshot",
    ),
    (
        "corked dgram socket",
        "a UDP socket holds data back (UDP_CORK, MSG_MORE): send it before the snapshot",
    ),
    (
        "Can't dump ghost file",
        "a file without a name, open or mapped, is larger than 16 MiB: close it before the snapshot, or keep its name",
    ),
    (
        "Can't lookup mount=",
        "a descriptor is of a file that lies on no mount, such as a POSIX message queue: close it before the snapshot",
    ),
    (
        "SysVIPC shmem map",
        "System V shared memory is attached: use memory that is shared by mmap instead, such as a file in /dev/shm",
    ),
    (
        "The packetized mode for pipes",
        "a pipe is in packet mode (O_DIRECT): make it without, or use a UNIX socket of kind SOCK_SEQPACKET",
    ),
    (
        "Can't dump file",
        "a descriptor is of a kind that no snapshot holds: close it before the snapshot",
    ),
    (
        "Unsupported mapping found",
        "memory is mapped from something that no snapshot holds: unmap it before the snapshot",
    ),
    (
        "Unsupported proto",
        "a socket is of a protocol that no snapshot holds: close it before the snapshot",
    ),
    (
        "Can't dump that handle",
        "a file is watched (inotify) by which no copy could find it again, such as one of /proc: end the watch before \
         the snapshot, or turn off what reloads files that change",
    ),
    (
        "Zombies with threads are not supported",
        "the first thread of a process has ended (pthread_exit) while others run: have it wait for them, with \
         pthread_join",
    ),
    (
        "POKEDATA failed",
        "the first executable memory of a process is shared and read-only, as the buffer of PHP's JIT is: turn the JIT \
         off (opcache.jit=disable), or map such code privately",
    ),
    (
        "Can't resolve name for socket",
        "a UNIX socket was bound to a relative name, and the working directory is another: bind it by its whole path",
    ),
];

/// The same for messages that are about the host.
const HOST_S: [(&str, &str); 2] = [
    (
        "No space left on device",
        "there is no room for the images: the directory of dumps, or the memory that they may take, is full",
    ),
    (
        "Timeout reached",
        "it took longer than it may: a host that is overloaded, or memory that is too much for its disk",
    ),
];

/// The cause of a failure, from the log at `path`, with advice where there is some. The text is appended to a message.
/// Empty if the log has no cause, or if CRIU was not what failed.
pub fn cause_of(failure: &CriuError, path: &Path) -> String {
    if matches!(failure, CriuError::Stage(..)) {
        return String::new();
    }
    cause_in(path)
}

/// Returns whether a cause that [`cause_of`] has returned is something that the function has, and not the host's.
pub fn is_of_function(cause: &str) -> bool {
    let means = cause.strip_prefix("; ").unwrap_or(cause);
    FUNCTION_S.iter().any(|(_, advice)| means.starts_with(advice))
}

/// Like `cause_of`, where it is known that CRIU failed.
pub fn cause_in(path: &Path) -> String {
    let log = read_log(path).unwrap_or_default();
    cause(&String::from_utf8_lossy(&log), CriuOperation::of_log(path))
        .map_or_else(String::new, |cause| format!("; {cause}"))
}

/// Reads a log that CRIU wrote, 8 MiB of it at most. A sandbox's CRIU may be under the function's control, so no link
/// is followed and only a regular file is read.
///
/// # Errors
/// If there is no such file.
pub fn read_log(path: &Path) -> io::Result<Vec<u8>> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let mut log = Vec::new();
    file.take(LOG_MAX).read_to_end(&mut log)?;
    Ok(log)
}

fn cause(log: &str, work: CriuOperation) -> Option<String> {
    let all = || FUNCTION_S.iter().chain(&HOST_S);
    let known = |error| Some((error, all().find(|(says, _)| str::contains(error, says))?.1));
    if let Some((error, means)) = errors(log, work).find_map(known) {
        return Some(format!("{means} (criu: {})", printable(error)));
    }
    first_error(log, work).map(|error| format!("criu: {}", printable(error)))
}

/// A message may have names of a function's files and processes. CRIU indents some by a tab after their prefix.
fn printable(message: &str) -> String {
    let mut shown = String::with_capacity(message.len());
    for c in message.chars() {
        if c == '\t' && shown.ends_with(' ') {
            continue;
        }
        match c.is_control() {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown
}

/// The first error in part of a log. Later errors are mostly its consequences.
pub(super) fn first_error(log: &str, work: CriuOperation) -> Option<&str> {
    errors(log, work).next()
}

fn errors(log: &str, work: CriuOperation) -> impl Iterator<Item = &str> {
    let messages = log.lines().filter_map(message);
    messages.filter(move |error| work.fails_by(error))
}

/// The text of an error without its time: `(00.012345) Error (criu/file.c:12): says`.
fn message(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("Error (")?;
    let (_, says) = rest.split_once("): ")?;
    Some(says.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HARMLESS_LINE: &str =
        "(00.000001) Error (criu/util.c:1479): Can't setup RLIMIT_NOFILE for self: Operation not permitted";
    const END: &str = "(00.020000) Error (criu/cr-dump.c:2099): Dumping FAILED.";

    #[test]
    fn the_first_known_error_is_the_cause_with_what_to_do() {
        let log = format!(
            "{HARMLESS_LINE}\n(00.000002) Warn  (criu/x.c:1): Error is no word of this\n\
             (00.01) Error (criu/mem.c:5): something else\n\
             (00.012345) Error (criu/sk-unix.c:506): unix: Non-empty write queue on an in-flight socket 0x2b\n\
             (00.013) Error (criu/cr-dump.c:1669): Dump files (pid: 501) failed with -1\n{END}\n"
        );
        let told = cause(&log, CriuOperation::Other).unwrap();
        assert!(told.contains("is not accepted yet: accept it"), "{told}");
        assert!(is_of_function(&format!("; {told}")));
        assert!(
            told.contains("(criu: unix: Non-empty write queue on an in-flight socket 0x2b)"),
            "{told}"
        );
    }

    #[test]
    fn of_unknown_errors_the_first_is_the_cause_and_not_the_last() {
        let log = format!("{HARMLESS_LINE}\n(00.01) Error (criu/y.c:5): a new thing\n{END}\n");
        assert_eq!(cause(&log, CriuOperation::Other).unwrap(), "criu: a new thing");
        let full = "(00.01) Error (criu/y.c:5): write: No space left on device\n";
        let told = cause(full, CriuOperation::Other).unwrap();
        assert!(told.starts_with("there is no room") && !is_of_function(&told), "{told}");
        assert!(!is_of_function("; criu: a new thing") && !is_of_function(""));
        assert_eq!(
            cause(HARMLESS_LINE, CriuOperation::Other),
            None,
            "what CRIU does without is no cause"
        );
        assert_eq!(cause("", CriuOperation::Other), None);
        let indented = "(00.01) Error (criu/fsnotify.c:5): fsnotify: \tCan't dump that handle\n";
        let told = cause(indented, CriuOperation::Other).unwrap();
        assert!(told.ends_with("(criu: fsnotify: Can't dump that handle)"), "{told}");
        let hostile = "(00.01) Error (criu/y.c:5): Can't open /tmp/\u{1b}]0;x\u{7}\n";
        assert_eq!(
            cause(hostile, CriuOperation::Other).unwrap(),
            r"criu: Can't open /tmp/\u{1b}]0;x\u{7}"
        );
    }

    #[test]
    fn that_filters_cannot_be_suspended_is_a_cause_at_a_checkpoint_only() {
        let log = "(00.01) Error (compel/src/lib/infect.c:1): suspending seccomp failed: Operation not permitted\n\
                   (00.02) Error (criu/files-reg.c:2): Can't open file /app/x\n";
        assert_eq!(
            cause(log, CriuOperation::Restore).unwrap(),
            "criu: Can't open file /app/x"
        );
        assert!(cause(log, CriuOperation::Other).unwrap().contains("seccomp"));
        assert_eq!(
            CriuOperation::of_log(&Path::new("/run/x").join(RESTORE_LOG)),
            CriuOperation::Restore
        );
        assert_eq!(
            CriuOperation::of_log(Path::new("/run/x/dump.log")),
            CriuOperation::Other
        );
    }

    #[test]
    fn a_log_that_is_not_there_has_no_cause_and_neither_has_a_failure_of_ours() {
        let failure = CriuError::Timeout(std::time::Duration::from_secs(1));
        assert_eq!(cause_of(&failure, Path::new("/nonexistent/dump.log")), "");
        let log = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(log.path(), END).unwrap();
        assert_eq!(cause_of(&failure, log.path()), "; criu: Dumping FAILED.");
        let ours = CriuError::Stage(super::super::stage::Stage::PostDump, "a check of ours".into());
        assert_eq!(cause_of(&ours, log.path()), "");
    }
}

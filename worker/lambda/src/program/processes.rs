//! The processes of a function: external extensions, then the runtime.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, exit};
use std::sync::Arc;
use std::thread;

use crate::exchange::{Exchange, ExitReason};
use crate::extensions::{Extension, Stage};

const EXTENSIONS: &str = "/opt/extensions";

/// Starts the extensions, waits until they have registered, and starts the runtime. The end of any of them ends this
/// process.
pub(crate) fn start(exchange: &Arc<Exchange>, command: &[String]) -> io::Result<()> {
    for path in executables(Path::new(EXTENSIONS)) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        exchange.lock().extensions.push(Extension::started(&name));
        let child = Command::new(&path).spawn();
        let child = child.map_err(|e| io::Error::new(e.kind(), format!("extension {}: {e}", path.display())))?;
        watch(exchange, child, move |status| ExitReason {
            kind: "Extension.Crash",
            message: format!("extension {name}: {}", describe_exit(status)),
            code: code(status),
        });
    }
    let mut state = exchange.lock();
    while state
        .extensions
        .iter()
        .any(|extension| extension.stage == Stage::Started)
    {
        state = exchange.wait(state);
    }
    drop(state);
    let (program, arguments) = command
        .split_first()
        .ok_or_else(|| io::Error::other("there is no command"))?;
    let child = Command::new(program).args(arguments).spawn();
    let child = child.map_err(|e| io::Error::new(e.kind(), format!("{program}: {e}")))?;
    watch(exchange, child, |status| ExitReason {
        kind: "Runtime.ExitError",
        message: match status.success() {
            true => "Runtime exited without providing a reason".to_owned(),
            false => format!("Runtime exited with error: {}", describe_exit(status)),
        },
        code: code(status),
    });
    Ok(())
}

/// Ends this process after a child of it.
fn watch(exchange: &Arc<Exchange>, mut child: Child, ended: impl FnOnce(ExitStatus) -> ExitReason + Send + 'static) {
    let exchange = Arc::clone(exchange);
    thread::spawn(move || {
        let ended = match child.wait() {
            Ok(status) => ended(status),
            Err(error) => ExitReason {
                kind: "Runtime.ExitError",
                message: error.to_string(),
                code: 1,
            },
        };
        eprintln!("{}", ended.message);
        let code = ended.code;
        exchange.end(ended);
        exit(code);
    });
}

/// How a process has ended, in the words of the emulator.
fn describe_exit(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("signal: {}", signal_name(signal)),
        (None, None) => "unknown".to_owned(),
    }
}

fn signal_name(signal: i32) -> String {
    match signal {
        2 => "interrupt".to_owned(),
        6 => "aborted".to_owned(),
        9 => "killed".to_owned(),
        11 => "segmentation fault".to_owned(),
        15 => "terminated".to_owned(),
        other => format!("signal {other}"),
    }
}

/// This process never ends well: a function that serves does not end.
fn code(status: ExitStatus) -> i32 {
    status.code().filter(|code| *code != 0).unwrap_or(1)
}

/// The programs in a directory, by name.
fn executables(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let is_program = |path: &PathBuf| {
        fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    };
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).filter(is_program).collect();
    paths.sort();
    paths
}

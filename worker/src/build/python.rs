//! Python packages: `requirements.txt` through pip, wheels only, for the runtime's interpreter whatever the host's is.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::cache::{CachedTree, DepsCache};
use super::confine::SEEN_AT;
use super::installer::{Finished, Installer, InstallerError, passed_environment, tree_bytes};
use super::requirements::{self, Requirements, RequirementsError};
use super::{BuildOrder, Progress, Room};

/// The host's interpreter.
const PYTHON: &str = "python3";
const PYTHON_PATH: &str = "/usr/bin/python3";
/// The runtime's interpreter: Debian 12's.
const RUNTIME_VERSION: &str = "3.11";
/// The runtime's C library, glibc 2.N; wheels made for an older one run on it.
const RUNTIME_GLIBC_MINOR: u32 = 36;
/// The oldest glibc that has a manylinux_2_N tag.
const OLDEST_GLIBC_MINOR: u32 = 17;
/// Changes when what is installed from the same list would change.
const CACHE_FORMAT: &str = "python 1";

/// Why packages could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum PythonError {
    /// The list was refused.
    #[error(transparent)]
    Requirements(#[from] RequirementsError),
    /// pip could not run to its end.
    #[error(transparent)]
    Installer(#[from] InstallerError),
    /// A package has no wheel.
    #[error(
        "python package \"{package}\" has only a source distribution for Python {RUNTIME_VERSION}, and is not built, since that would run its code on the worker: \
         copy the package's files into the function's folder and remove it from requirements.txt, or name a version that has a wheel; pip said:\n{output}"
    )]
    SourceOnly {
        /// The package.
        package: String,
        /// pip's last words.
        output: String,
    },
    /// pip refused.
    #[error(
        "pip could not install requirements.txt (only wheels for Python {RUNTIME_VERSION} on Linux are installed; a package without one must be copied into the function's folder): {output}"
    )]
    Failed {
        /// pip's last words.
        output: String,
    },
    /// The worker's own disk.
    #[error("{} python packages in {}", .action, .path.display())]
    Disk {
        /// What was attempted.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Where installed packages lie.
#[derive(Debug)]
pub(super) enum Packages {
    Cached(CachedTree),
    /// In the build's own directory.
    Fresh(PathBuf),
}

impl Packages {
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Cached(tree) => &tree.path,
            Self::Fresh(path) => path,
        }
    }
}

/// Installs what `requirements.txt` asks for; nothing when it asks for nothing.
pub(super) async fn install(
    order: &BuildOrder<'_>,
    room: &Room,
    cache: &DepsCache,
    progress: &Progress<'_>,
) -> Result<Option<Packages>, PythonError> {
    let Some(wanted) = requirements::read(&room.app())? else {
        return Ok(None);
    };
    let failed = |action, path: &Path| {
        let path = path.to_owned();
        move |source| PythonError::Disk { action, path, source }
    };
    let key = cache_key(&wanted, &room.app()).map_err(failed("read", &room.app()))?;
    if let Some(tree) = cache.get(&key).map_err(failed("look for", &order.work_dir))? {
        progress("python packages were installed before: taken from the cache");
        return Ok(Some(Packages::Cached(tree)));
    }
    progress("installing python packages with pip");
    let list = room.path.join("requirements.txt");
    fs::write(&list, wanted.lines.join("\n") + "\n").map_err(failed("list", &list))?;
    let constraints = room.path.join("constraints.txt");
    fs::write(&constraints, wanted.constraints.join("\n") + "\n").map_err(failed("list", &constraints))?;

    let finished = pip(order, room, install_arguments()).run().await?;
    if !finished.success {
        return Err(explain(order, room, finished).await);
    }
    compile(order, room, "deps", "/app/.rekindle/python").await?;
    let deps = room.deps();
    let stored = tokio::task::spawn_blocking({
        let (cache, deps) = (cache.clone(), deps.clone());
        move || cache.put(&key, &deps, tree_bytes(&deps, u64::MAX))
    });
    let stored = stored
        .await
        .map_err(io::Error::other)
        .flatten()
        .map_err(failed("keep", &order.work_dir))?;
    Ok(Some(stored.map_or(Packages::Fresh(deps), Packages::Cached)))
}

fn pip<'a>(order: &'a BuildOrder<'_>, room: &'a Room, arguments: Vec<OsString>) -> Installer<'a> {
    Installer {
        program: PYTHON,
        package: "python3-pip",
        arguments,
        environment: Vec::new(),
        room: &room.path,
        // Wheels in the folder are named relative to it. Isolated mode keeps the folder's modules out of pip.
        cwd: "/tmp/app",
        room_bytes: order.limits.room_bytes(),
        time_limit: order.limits.install_timeout,
        cgroup_procs: &order.cgroup_procs,
    }
}

/// Which wheels fit: not the host's interpreter and C library are asked, but the runtime's are told.
fn target_arguments() -> Vec<OsString> {
    let arch = std::env::consts::ARCH;
    let mut arguments: Vec<String> = ["--python-version", RUNTIME_VERSION, "--implementation", "cp"]
        .map(String::from)
        .into();
    // The newest first: pip prefers what comes earlier.
    let mut platforms: Vec<String> = (OLDEST_GLIBC_MINOR..=RUNTIME_GLIBC_MINOR)
        .rev()
        .map(|n| format!("manylinux_2_{n}_{arch}"))
        .collect();
    platforms.push(format!("manylinux2014_{arch}"));
    platforms.push(format!("linux_{arch}"));
    arguments.extend(platforms.into_iter().map(|p| format!("--platform={p}")));
    arguments.into_iter().map(OsString::from).collect()
}

fn install_arguments() -> Vec<OsString> {
    let target = format!("{SEEN_AT}/deps");
    let (list, constraints) = (
        format!("{SEEN_AT}/requirements.txt"),
        format!("{SEEN_AT}/constraints.txt"),
    );
    let mut arguments: Vec<OsString> = [
        "-I",
        "-m",
        "pip",
        "install",
        "--target",
        &target,
        "--only-binary=:all:",
        "--no-compile",
        "--no-input",
        "--no-cache-dir",
        "--disable-pip-version-check",
        "--progress-bar=off",
        "-r",
        &list,
        "-c",
        &constraints,
    ]
    .map(OsString::from)
    .into();
    arguments.extend(target_arguments());
    arguments
}

/// Everything that decides what gets installed.
fn cache_key(wanted: &Requirements, app: &Path) -> io::Result<String> {
    let mut hash = blake3::Hasher::new();
    let mut part = |bytes: &[u8]| {
        hash.update(&(bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    part(CACHE_FORMAT.as_bytes());
    part(if host_compiles() { b"compiled" } else { b"source" });
    for argument in target_arguments() {
        part(argument.as_encoded_bytes());
    }
    for (name, value) in passed_environment() {
        part(name.as_encoded_bytes());
        part(value.as_encoded_bytes());
    }
    for (kind, lines) in [("lines", &wanted.lines), ("constraints", &wanted.constraints)] {
        part(kind.as_bytes());
        lines.iter().for_each(|l| part(l.as_bytes()));
    }
    for wheel in &wanted.wheels {
        part(&fs::read(app.join(wheel))?);
    }
    Ok(hash.finalize().to_hex().to_string())
}

/// Tells why pip failed. Where it found no version of a package that is there as source, that is the reason.
async fn explain(order: &BuildOrder<'_>, room: &Room, finished: Finished) -> PythonError {
    let output = finished.output;
    let Some(package) = not_found(&output) else {
        return PythonError::Failed { output };
    };
    let mut arguments: Vec<OsString> = [
        "-I",
        "-m",
        "pip",
        "index",
        "versions",
        &package,
        "--no-binary=:all:",
        "--no-input",
        "--disable-pip-version-check",
    ]
    .map(OsString::from)
    .into();
    arguments.extend(["--no-cache-dir".into()]);
    match pip(order, room, arguments).run().await {
        Ok(Finished { success: true, .. }) => PythonError::SourceOnly { package, output },
        // No such package, or nobody to ask: pip's own words then.
        _ => PythonError::Failed { output },
    }
}

/// The package in pip's "Could not find a version that satisfies the requirement NAME…".
fn not_found(output: &str) -> Option<String> {
    let (_, rest) = output.split_once("Could not find a version that satisfies the requirement ")?;
    let name: String = rest
        .chars()
        .take_while(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c))
        .collect();
    name.starts_with(|c: char| c.is_ascii_alphanumeric()).then_some(name)
}

/// Whether the host's interpreter writes byte code that the runtime's reads.
fn host_compiles() -> bool {
    fs::canonicalize(PYTHON_PATH).is_ok_and(|p| p.file_name().is_some_and(|n| n == "python3.11"))
}

/// Compiles the modules in the room's directory `name`, which will lie at `at`. Compiling runs nothing of them. A module
/// that does not compile is left as it is: the error belongs to who imports it.
pub(super) async fn compile(order: &BuildOrder<'_>, room: &Room, name: &str, at: &str) -> Result<(), PythonError> {
    if !host_compiles() {
        return Ok(());
    }
    if name == "app" {
        let failed = |source| PythonError::Disk {
            action: "compile",
            path: room.app(),
            source,
        };
        room.hand_over_app().map_err(failed)?;
    }
    let directory = format!("{SEEN_AT}/{name}");
    // Unchecked: the files never change, so nobody has to look at their times at import.
    let arguments = [
        "-P",
        "-s",
        "-S",
        "-m",
        "compileall",
        "-qq",
        "-f",
        "--invalidation-mode",
        "unchecked-hash",
        "-s",
        &directory,
        "-p",
        at,
        &directory,
    ];
    let installer = Installer {
        arguments: arguments.map(OsString::from).into(),
        // The order of sets in the byte code depends on it.
        environment: vec![("PYTHONHASHSEED", "0")],
        cwd: SEEN_AT,
        ..pip(order, room, Vec::new())
    };
    installer.run().await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_package_is_read_from_pips_words() {
        let output =
            "ERROR: Could not find a version that satisfies the requirement no-such.thing_1>=2 (from versions: none)";
        assert_eq!(not_found(output).as_deref(), Some("no-such.thing_1"));
        assert_eq!(not_found("ERROR: something else"), None);
        assert_eq!(
            not_found("Could not find a version that satisfies the requirement --evil"),
            None
        );
    }
}

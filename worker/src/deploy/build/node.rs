//! Node packages: installs `package.json` through npm, whose scripts run in the build's sandbox.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rekindle_confined::is_control;
use serde_json::Value;

use super::installer::{Installer, InstallerError, wanted_compiler};
use super::{BuildDir, BuildOrder, Progress, RootError};

/// Keys of `package.json` that make npm install something.
const DEPENDENCIES: [&str; 3] = ["dependencies", "optionalDependencies", "peerDependencies"];

/// Why packages could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The file is not JSON.
    #[error("package.json is not JSON ({0}): correct it")]
    PackageJson(String),
    /// A setting has a control character.
    #[error("{file}: \"{setting}\" has a control character: remove it")]
    Control {
        /// The file in the function's folder.
        file: &'static str,
        /// The setting, in printable form.
        setting: String,
    },
    /// The root filesystem or the network that npm needs is not available.
    #[error(transparent)]
    Root(#[from] RootError),
    /// npm could not run to its end.
    #[error(transparent)]
    Installer(#[from] InstallerError),
    /// npm failed.
    #[error(
        "npm could not install package.json (git dependencies are not fetched): {output}{}",
        wanted_compiler(.output)
    )]
    Failed {
        /// The end of npm's output.
        output: String,
    },
    /// The worker's own disk failed.
    #[error("{} {}", .action, .path.display())]
    Disk {
        /// The attempted action.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The error.
        #[source]
        source: io::Error,
    },
}

/// Installs the dependencies of `package.json` into the uploaded folder's `node_modules`.
pub(super) async fn install(
    order: &BuildOrder<'_>,
    build_dir: &BuildDir,
    progress: &Progress<'_>,
) -> Result<(), NodeError> {
    let app = build_dir.app();
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
    check_settings(&package, &app)?;

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
        "--foreground-scripts",
        "--no-audit",
        "--no-fund",
        "--no-update-notifier",
        "--no-progress",
        "--logs-max=0",
        "--cache=/tmp/home/.npm",
        "--userconfig=/tmp/home/npmrc",
    ];
    let network = order.network().await?;
    let finished = Installer {
        order,
        build_dir,
        root: order.tools().await?,
        network: Some(&network),
        program: "/usr/bin/npm",
        arguments: verb.iter().chain(&options).map(ToString::to_string).collect(),
        environment: Vec::new(),
        shown: Vec::new(),
    }
    .run()
    .await?;
    if finished.success {
        Ok(())
    } else {
        Err(NodeError::Failed {
            output: finished.output,
        })
    }
}

/// Checks that names and versions of dependencies, and the lines of `.npmrc`, have no control characters and so are
/// what they look like.
fn check_settings(package: &Value, app: &Path) -> Result<(), NodeError> {
    let refuse = |file, setting: &str| {
        Err(NodeError::Control {
            file,
            setting: setting.escape_debug().take(200).collect(),
        })
    };
    let has_control = |text: &str| text.chars().any(is_control);
    for (name, version) in DEPENDENCIES
        .iter()
        .filter_map(|k| package.get(*k)?.as_object())
        .flatten()
    {
        if has_control(name) || version.as_str().is_some_and(has_control) {
            return refuse("package.json", name);
        }
    }
    let text = fs::read(app.join(".npmrc")).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    match text
        .lines()
        .find(|line| line.chars().any(|c| is_control(c) && c != '\t'))
    {
        Some(line) => refuse(".npmrc", line),
        None => Ok(()),
    }
}

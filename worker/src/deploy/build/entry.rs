//! Checks that the entry named in `fn.toml` exists. The rules are the runtimes' own (`handler.py`, `handler.js`).

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rekindle_wire::manifest::{Manifest, Runtime};

/// The function's files cannot be started as its manifest says.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct EntryError(String);

/// Whether the handler was found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It exists.
    Yes,
    /// It is not in the uploaded folder, but may come with a dependency.
    WithDependencies,
}

/// Looks for the entry in the uploaded folder `app`, before anything is installed.
pub(super) fn check(manifest: &Manifest, app: &Path) -> Result<Found, EntryError> {
    let entry = manifest.entry.as_deref().unwrap_or_default();
    match manifest.runtime {
        Runtime::Python => {
            let module = python_module(entry);
            if python_file(app, &module) {
                return Ok(Found::Yes);
            }
            if app.join("requirements.txt").is_file() {
                return Ok(Found::WithDependencies);
            }
            Err(python_missing(entry, &module))
        }
        Runtime::Node => node(entry, app),
        Runtime::Http => command(manifest, app),
    }
}

/// Looks for the entry again, now in the installed packages as well.
pub(super) fn check_installed(manifest: &Manifest, app: &Path, packages: Option<&Path>) -> Result<(), EntryError> {
    let entry = manifest.entry.as_deref().unwrap_or_default();
    if manifest.runtime == Runtime::Node {
        let module = node_module(entry);
        return if node_file(app, module) {
            Ok(())
        } else {
            Err(node_missing(entry, module))
        };
    }
    let module = python_module(entry);
    match packages {
        Some(packages) if python_file(packages, &module) => Ok(()),
        _ => Err(python_missing(entry, &module)),
    }
}

/// Returns the module's path without extension: `pkg/main` of `pkg.main.handler`.
fn python_module(entry: &str) -> String {
    let module = entry.rsplit_once('.').map_or(entry, |(module, _)| module);
    module.trim_start_matches("./").replace('.', "/")
}

fn python_missing(entry: &str, module: &str) -> EntryError {
    EntryError(format!(
        "entry = \"{entry}\" needs {module}.py (or the package {module}/__init__.py) in the function's folder: add it, or correct entry in fn.toml"
    ))
}

fn python_file(root: &Path, module: &str) -> bool {
    let path = root.join(module);
    if path.with_added_extension("py").is_file() || path.join("__init__.py").is_file() {
        return true;
    }
    // An extension module: main.cpython-311-x86_64-linux-gnu.so, main.abi3.so or main.so.
    let Some((parent, name)) = path.parent().zip(path.file_name().and_then(|n| n.to_str())) else {
        return false;
    };
    fs::read_dir(parent).into_iter().flatten().flatten().any(|e| {
        let file = e.file_name();
        let rest = file.to_str().and_then(|f| f.strip_prefix(name));
        rest.is_some_and(|r| r.starts_with('.') && r.ends_with(".so"))
    })
}

fn node(entry: &str, app: &Path) -> Result<Found, EntryError> {
    let module = node_module(entry);
    if node_file(app, module) {
        return Ok(Found::Yes);
    }
    if module.starts_with("node_modules/") && app.join("package.json").is_file() {
        return Ok(Found::WithDependencies);
    }
    Err(node_missing(entry, module))
}

/// Returns the module's path without extension: `lib/index` of `./lib/index.api.handler`.
fn node_module(entry: &str) -> &str {
    let path = entry.trim_start_matches("./");
    let file_at = path.rfind('/').map_or(0, |slash| slash + 1);
    let end = path[file_at..].find('.').map_or(path.len(), |dot| file_at + dot);
    &path[..end]
}

fn node_file(app: &Path, module: &str) -> bool {
    let path = app.join(module);
    path.is_file()
        || ["js", "mjs", "cjs"]
            .iter()
            .any(|e| path.with_added_extension(e).is_file())
        || path.join("package.json").is_file()
        || path.join("index.js").is_file()
}

fn node_missing(entry: &str, module: &str) -> EntryError {
    EntryError(format!(
        "entry = \"{entry}\" needs {module}.js, .mjs or .cjs in the function's folder: add it, or correct entry in fn.toml"
    ))
}

fn command(manifest: &Manifest, app: &Path) -> Result<Found, EntryError> {
    let program = manifest.command.first().map_or("", String::as_str);
    let Some(relative) = program
        .strip_prefix("/app/")
        .or_else(|| (!program.starts_with('/')).then_some(program))
    else {
        return Ok(Found::Yes);
    };
    if !program.contains('/') {
        // It is looked up in the root filesystem.
        return Ok(Found::Yes);
    }
    let relative = relative.trim_start_matches("./");
    let Ok(metadata) = fs::metadata(app.join(relative)) else {
        return Err(EntryError(format!(
            "command starts {program}, which is not in the function's folder: build it before the deploy (build.command in fn.toml), check .fnignore, or correct command"
        )));
    };
    if !metadata.is_file() {
        return Err(EntryError(format!(
            "command starts {program}, which is not a file: correct command in fn.toml"
        )));
    }
    if metadata.permissions().mode() & 0o100 == 0 {
        return Err(EntryError(format!(
            "command starts {program}, which is not executable: run `chmod +x {relative}` and deploy again"
        )));
    }
    Ok(Found::Yes)
}

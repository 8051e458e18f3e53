//! Checks that the entry named in `fn.toml` exists. The rules are the runtimes' own (`handler.py`, `handler.js`). The
//! command line looks for it in what it is about to upload, by the same rules.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use rekindle_wire::api::SourceFile;
use rekindle_wire::function_config::{FunctionConfig, Runtime};

use super::PYTHON_PACKAGES;
use super::tree::{Directory, Kind, Listing, Tree};

/// How many programs an error lists.
const LISTED: usize = 20;

/// The function's files cannot be started as its config says.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct EntryError(String);

#[derive(Debug, PartialEq, Eq)]
pub(super) enum HandlerLocation {
    Yes,
    /// It is not in the uploaded folder, but may come with a dependency or the root filesystem.
    Elsewhere,
}

pub(super) struct BuildOutput<'a> {
    /// The uploaded folder, with `node_modules`.
    pub(super) app: &'a Path,
    pub(super) packages: Option<&'a Path>,
    pub(super) root: &'a Path,
}

/// Looks for the entry in the uploaded folder `app`, before anything is installed.
pub(super) fn check(config: &FunctionConfig, app: &Path) -> Result<HandlerLocation, EntryError> {
    find(config, &Directory(app))
}

/// Looks for the entry in a folder that is not uploaded yet. What dependencies or a root filesystem may bring counts as
/// there.
///
/// # Errors
/// If no build can find it.
pub fn check_listing(config: &FunctionConfig, files: &[SourceFile]) -> Result<(), EntryError> {
    match &config.image {
        Some(_) => Ok(()),
        None => find(config, &Listing(files)).map(drop),
    }
}

fn find(config: &FunctionConfig, app: &dyn Tree) -> Result<HandlerLocation, EntryError> {
    let entry = config.entry.as_deref().unwrap_or_default();
    match config.runtime {
        Runtime::Python => {
            let module = python_module(entry);
            if python_file(app, &module) {
                return Ok(HandlerLocation::Yes);
            }
            if app.has_file(Path::new("requirements.txt")) {
                return Ok(HandlerLocation::Elsewhere);
            }
            Err(python_missing(entry, &module))
        }
        Runtime::Node => node(entry, app),
        Runtime::Http => command(config, app),
    }
}

/// Looks for the entry again, now in the installed packages and the root filesystem as well.
pub(super) fn check_built(config: &FunctionConfig, built: &BuildOutput<'_>) -> Result<(), EntryError> {
    let entry = config.entry.as_deref().unwrap_or_default();
    match config.runtime {
        Runtime::Python => {
            let module = python_module(entry);
            match built.packages {
                Some(packages) if python_file(&Directory(packages), &module) => Ok(()),
                _ => Err(python_missing(entry, &module)),
            }
        }
        Runtime::Node => {
            let module = node_module(entry);
            match node_file(&Directory(built.app), module) {
                true => Ok(()),
                false => Err(node_missing(entry, module)),
            }
        }
        Runtime::Http => built_command(config, built),
    }
}

/// Returns the module's path without extension: `pkg/main` of `pkg.main.handler`.
fn python_module(entry: &str) -> String {
    let module = entry.rsplit_once('.').map_or(entry, |(module, _)| module);
    module.trim_start_matches("./").replace('.', "/")
}

fn python_missing(entry: &str, module: &str) -> EntryError {
    EntryError(format!(
        "entry = \"{entry}\" needs {module}.py (or the package {module}/__init__.py) in the function's folder: add it, \
         or correct entry in fn.toml"
    ))
}

fn python_file(root: &dyn Tree, module: &str) -> bool {
    let path = Path::new(module);
    if root.has_file(&path.with_added_extension("py")) || root.has_file(&path.join("__init__.py")) {
        return true;
    }
    // An extension module: main.cpython-311-x86_64-linux-gnu.so, main.abi3.so or main.so.
    let Some((parent, name)) = path.parent().zip(path.file_name().and_then(|n| n.to_str())) else {
        return false;
    };
    root.names(parent).iter().any(|file| {
        let rest = file.strip_prefix(name);
        rest.is_some_and(|r| r.starts_with('.') && r.ends_with(".so"))
    })
}

fn node(entry: &str, app: &dyn Tree) -> Result<HandlerLocation, EntryError> {
    let module = node_module(entry);
    if node_file(app, module) {
        return Ok(HandlerLocation::Yes);
    }
    if module.starts_with("node_modules/") && app.has_file(Path::new("package.json")) {
        return Ok(HandlerLocation::Elsewhere);
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

fn node_file(app: &dyn Tree, module: &str) -> bool {
    let path = Path::new(module);
    app.has_file(path)
        || ["js", "mjs", "cjs"]
            .iter()
            .any(|e| app.has_file(&path.with_added_extension(e)))
        || app.has_file(&path.join("package.json"))
        || app.has_file(&path.join("index.js"))
}

fn node_missing(entry: &str, module: &str) -> EntryError {
    EntryError(format!(
        "entry = \"{entry}\" needs {module}.js, .mjs or .cjs in the function's folder: add it, or correct entry in \
         fn.toml"
    ))
}

/// Returns a command's program, relative to `/app` if it is below that. Names are looked up and stay as they are.
fn program(config: &FunctionConfig) -> &str {
    let program = config.command.first().map_or("", String::as_str);
    let relative = program.strip_prefix("/app/").unwrap_or(program);
    relative.trim_start_matches("./")
}

fn command(config: &FunctionConfig, app: &dyn Tree) -> Result<HandlerLocation, EntryError> {
    let program = program(config);
    if program.starts_with('/') {
        return Ok(HandlerLocation::Yes);
    }
    if !config.command[0].contains('/') {
        // Only the built function has all of the default path.
        let is_default = !config.env.contains_key("PATH");
        return Ok(if is_default {
            HandlerLocation::Elsewhere
        } else {
            HandlerLocation::Yes
        });
    }
    if app.kind(Path::new(program)).is_none() && comes_with_dependencies(config, app, program) {
        return Ok(HandlerLocation::Elsewhere);
    }
    executable(config, app, program)
}

/// Returns whether a path of the function is one that an installer makes.
fn comes_with_dependencies(config: &FunctionConfig, app: &dyn Tree, path: &str) -> bool {
    let (directory, list) = match config.base.runtime() {
        Some(Runtime::Python) => (PYTHON_PACKAGES, "requirements.txt"),
        Some(Runtime::Node) => ("node_modules", "package.json"),
        Some(Runtime::Http) | None => return false,
    };
    Path::new(path).starts_with(directory) && app.has_file(Path::new(list))
}

fn executable(config: &FunctionConfig, app: &dyn Tree, path: &str) -> Result<HandlerLocation, EntryError> {
    let program = &config.command[0];
    let wrong = match app.kind(Path::new(path)) {
        Some(Kind::Executable) => return Ok(HandlerLocation::Yes),
        Some(Kind::Plain) => format!("is not executable: run `chmod +x {path}` and deploy again"),
        Some(Kind::Other) => "is not a file: correct command in fn.toml".to_owned(),
        None => "is not in the function's folder: build it before the deploy (build.command in fn.toml), check \
                 .fnignore, or correct command"
            .to_owned(),
    };
    Err(EntryError(format!("command starts {program}, which {wrong}")))
}

fn built_command(config: &FunctionConfig, built: &BuildOutput<'_>) -> Result<(), EntryError> {
    let program = program(config);
    let exists = |path: &str| match path.strip_prefix("/app/").unwrap_or(path) {
        absolute if absolute.starts_with('/') => built.root.join(absolute.trim_start_matches('/')).exists(),
        relative => match (Path::new(relative).strip_prefix(PYTHON_PACKAGES), built.packages) {
            (Ok(within), Some(packages)) => packages.join(within).is_file(),
            _ => built.app.join(relative).is_file(),
        },
    };
    let is_there = match program.contains('/') {
        true => exists(program),
        false => config
            .base
            .search_path()
            .split(':')
            .any(|directory| exists(&format!("{directory}/{program}"))),
    };
    if is_there {
        return Ok(());
    }
    let brought = brought(built);
    let brought = match brought.is_empty() {
        true => "no programs".to_owned(),
        false => brought.into_iter().take(LISTED).collect::<Vec<_>>().join(", "),
    };
    Err(EntryError(format!(
        "command starts {}, which neither the root filesystem \"{}\" nor an installed package has: the packages \
         bring {brought}; add the package that has it, or correct command in fn.toml",
        config.command[0],
        config.base.as_str()
    )))
}

/// Returns the names of the programs that installed packages bring.
fn brought(built: &BuildOutput<'_>) -> BTreeSet<String> {
    let python = built.packages.map(|packages| packages.join("bin"));
    let directories = python.into_iter().chain([built.app.join("node_modules/.bin")]);
    directories
        .flat_map(|directory| fs::read_dir(directory).into_iter().flatten().flatten())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

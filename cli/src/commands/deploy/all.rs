//! `fn deploy --all`: every function in the folders below one.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Error, Result, bail};
use futures::StreamExt as _;
use rekindle_wire::ApiError;
use rekindle_wire::api::VersionInfo;
use rekindle_wire::function_config::{self, FunctionConfig};
use serde::Serialize;

use super::packaged::read_config;
use super::{DeployOptions, DeployedVersion, deploy};
use crate::client::Client;
use crate::show::{self, Steps, Tone};

/// Number of functions that are deployed at once. The platform prepares two at a time.
const AT_ONCE: usize = 4;
/// How deep below the folder functions are looked for.
const DEPTH_MAX: usize = 8;
/// Folders in which none is looked for, beside hidden ones.
const NOT_IN: [&str; 3] = ["node_modules", "venv", "__pycache__"];

/// What became of one function.
struct Outcome {
    folder: PathBuf,
    name: String,
    deployed: Result<DeployedVersion>,
    took: Duration,
}

/// An outcome for programs.
#[derive(Serialize)]
struct DeployOutcome<'a> {
    folder: &'a Path,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<&'a VersionInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Deploys every function below `top` and prints what became of each. Fails if any did.
pub(super) async fn run(client: &Client, top: &Path, how: DeployOptions, json: bool) -> Result<ExitCode> {
    let functions = functions(top)?;
    let steps = Steps::new(how.quiet);
    let total = functions.len();
    steps.step(format!("deploying {}", show::count(total, "function")));
    let quiet = DeployOptions { quiet: true, ..how };
    let (steps, one) = (&steps, async |(folder, config): (PathBuf, FunctionConfig)| {
        let (began, name) = (Instant::now(), config.name.to_string());
        let deployed = deploy(client, &folder, quiet.clone()).await;
        let took = began.elapsed();
        steps.note(&match &deployed {
            Ok(done) => format!("{name}: {} after {}", state(done), show::duration(took)),
            Err(error) => format!("{name}: {}", reason(error)),
        });
        Outcome {
            folder,
            name,
            deployed,
            took,
        }
    });
    let outcomes: Vec<Outcome> = futures::stream::iter(functions)
        .map(one)
        .buffered(AT_ONCE)
        .collect()
        .await;
    steps.finish();
    let failed = outcomes.iter().filter(|outcome| outcome.deployed.is_err()).count();
    match json {
        true => show::print_json(&outcomes.iter().map(told).collect::<Vec<_>>())?,
        false => print(&outcomes),
    }
    Ok(match failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

fn told(outcome: &Outcome) -> DeployOutcome<'_> {
    DeployOutcome {
        folder: &outcome.folder,
        name: &outcome.name,
        version: outcome.deployed.as_ref().ok().map(|done| &done.version),
        error: outcome.deployed.as_ref().err().map(reason),
    }
}

/// What became of a function that could be deployed.
fn state(done: &DeployedVersion) -> String {
    match done.new {
        true => done.state(),
        false => format!("{}, unchanged", done.state()),
    }
}

/// Why a function could not be deployed, on one line.
fn reason(error: &Error) -> String {
    let text = match error.downcast_ref::<ApiError>() {
        Some(api) => format!("{}: {}", api.code.as_str(), api.message),
        None => format!("{error:#}"),
    };
    text.lines().next().unwrap_or_default().to_owned()
}

fn print(outcomes: &[Outcome]) {
    let mut table = show::table(["FUNCTION", "VERSION", "STATE", "TOOK", "FOLDER"]);
    for outcome in outcomes {
        let (version, state) = match &outcome.deployed {
            Ok(done) => (done.version.version.to_string(), state(done)),
            Err(_) => ("-".to_owned(), show::tinted("failed", Tone::Bad)),
        };
        table.add_row([
            outcome.name.clone(),
            version,
            state,
            show::duration(outcome.took),
            outcome.folder.display().to_string(),
        ]);
    }
    show::print_table(&table);
    for outcome in outcomes {
        if let Err(error) = &outcome.deployed {
            eprintln!("\n{}:", outcome.name);
            show::print_error(error);
        }
    }
}

/// The folders below `top` with a function each. All configs are read first, so that a mistake in one costs no
/// deploy.
fn functions(top: &Path) -> Result<Vec<(PathBuf, FunctionConfig)>> {
    let mut folders = Vec::new();
    find(top, 0, &mut folders)?;
    folders.sort();
    let mut by_name: BTreeMap<String, PathBuf> = BTreeMap::new();
    let mut functions = Vec::new();
    for folder in folders {
        let config = read_config(&folder)?;
        if let Some(other) = by_name.insert(config.name.to_string(), folder.clone()) {
            bail!(
                "{} and {} are both named {}: rename one (name in fn.toml)",
                other.display(),
                folder.display(),
                config.name
            );
        }
        functions.push((folder, config));
    }
    if functions.is_empty() {
        bail!("no folder in {} has an fn.toml: make one with `fn init`", top.display());
    }
    Ok(functions)
}

fn find(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> Result<()> {
    if folder.join(function_config::FILE_NAME).is_file() {
        // What is in it belongs to it.
        found.push(folder.to_owned());
        return Ok(());
    }
    if depth >= DEPTH_MAX {
        return Ok(());
    }
    let unread = || format!("{}: the folder cannot be read", folder.display());
    for entry in fs::read_dir(folder).with_context(unread)? {
        let entry = entry.with_context(unread)?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_left_out = name.starts_with('.') || NOT_IN.contains(&&*name);
        // Not through links, which may lead back.
        if !is_left_out && entry.file_type().with_context(unread)?.is_dir() {
            find(&entry.path(), depth + 1, found)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(top: &Path, folder: &str, name: &str) {
        let folder = top.join(folder);
        fs::create_dir_all(&folder).unwrap();
        let text = format!("name = \"{name}\"\nruntime = \"python\"\nentry = \"m.h\"\n");
        fs::write(folder.join("fn.toml"), text).unwrap();
    }

    #[test]
    fn every_folder_with_a_config_is_a_function_but_those_within_one() {
        let dir = tempfile::tempdir().unwrap();
        let found = || functions(dir.path()).map(|all| all.into_iter().map(|(_, m)| m.name.to_string()).collect());
        let none: Result<Vec<String>> = found();
        assert!(format!("{:#}", none.unwrap_err()).contains("`fn init`"));
        for (folder, name) in [
            ("b", "b"),
            ("a/deep/c", "c"),
            ("b/inside", "inside"),
            (".git/x", "hidden"),
            ("node_modules/y", "packaged"),
        ] {
            function(dir.path(), folder, name);
        }
        assert_eq!(found().unwrap(), ["c", "b"], "in the order of their folders");
        function(dir.path(), "z", "b");
        assert!(format!("{:#}", found().unwrap_err()).contains("both named b"));
    }
}

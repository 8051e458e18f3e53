//! `rekindle-bench first`: the first restore after a deploy, compared with the tenth. A deploy rehearses a restore, so
//! the two should be alike.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::args::{Args, checkout};
use crate::folder;
use crate::host::Host;
use crate::platform::Platform;
use crate::record::{self, Taken};
use crate::report::{ms, table};
use crate::stats::figures;

/// Restores after each deploy. The last five are what the first is compared with.
const RESTORES: usize = 12;
const LATER: usize = 5;
/// Samples that nobody restores for their speed.
const LEFT_OUT: [&str; 1] = ["hostile-python"];

/// `rekindle-bench first`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct FirstArgs {
    /// Folders of functions; by default all of functions/samples and load-tests/zoo.
    #[arg(value_name = "FOLDER")]
    folders: Vec<PathBuf>,
    /// Deploys of each.
    #[arg(long, value_name = "N", default_value_t = 5)]
    deploys: usize,
    /// Where to write the figures; by default load-tests/results/DATE-REVISION-first.json.
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
}

#[derive(Debug, Clone, Serialize)]
struct Record {
    #[serde(flatten)]
    taken: Taken,
    rows: Vec<Row>,
}

/// Results for one folder.
#[derive(Debug, Clone, Serialize)]
struct Row {
    function: String,
    /// Milliseconds of each restore, in order, for each deploy.
    deploys: Vec<Vec<f64>>,
}

impl Row {
    fn first(&self) -> f64 {
        p50(self.deploys.iter().map(|restores| restores[0]))
    }

    fn later(&self) -> f64 {
        p50(self
            .deploys
            .iter()
            .flat_map(|restores| restores[RESTORES - LATER..].iter().copied()))
    }
}

fn p50(samples: impl IntoIterator<Item = f64>) -> f64 {
    figures(samples).map_or(f64::NAN, |figures| figures.p50)
}

/// Measures, writes and prints.
pub(crate) async fn run(args: &Args, first: &FirstArgs) -> Result<()> {
    let mut record = Record {
        taken: Taken::now(),
        rows: Vec::new(),
    };
    let folders = if first.folders.is_empty() {
        every_folder()?
    } else {
        first.folders.clone()
    };
    let platform = Platform::start(args).await?;
    for folder in &folders {
        let function = folder
            .file_name()
            .context("a folder has a name")?
            .to_string_lossy()
            .into_owned();
        eprintln!("{function}");
        let mut row = Row {
            function,
            deploys: Vec::new(),
        };
        for n in 0..first.deploys.max(1) {
            row.deploys
                .push(after_a_deploy(&platform, folder, &format!("first-{n}-{}", row.function)).await?);
        }
        record.rows.push(row);
    }
    let path = record.taken.place(first.json.as_deref(), "-first");
    record::write_json(&record, &path)?;
    print(&record);
    println!("\nfigures: {}", record::told(&path));
    Ok(())
}

/// The folders with an `fn.toml` of the samples and the applications, by name.
fn every_folder() -> Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for group in ["functions/samples", "load-tests/zoo"] {
        let group = checkout().join(group);
        let entries = std::fs::read_dir(&group).with_context(|| format!("{}: cannot be read", group.display()))?;
        for entry in entries {
            let path = entry
                .with_context(|| format!("{}: cannot be read", group.display()))?
                .path();
            let left_out = path
                .file_name()
                .is_some_and(|name| LEFT_OUT.iter().any(|out| name == *out));
            if !left_out && path.join("fn.toml").exists() {
                folders.push(path);
            }
        }
    }
    folders.sort();
    Ok(folders)
}

/// Milliseconds of each restore after a deploy of this folder under this name. It is deleted afterwards.
async fn after_a_deploy(platform: &Platform, folder: &std::path::Path, name: &str) -> Result<Vec<f64>> {
    let scratch = tempfile::tempdir().context("no temporary directory")?;
    let copy = scratch.path().join("function");
    folder::copy(folder, &copy)?;
    folder::rename(&copy, name, &[])?;
    platform.deploy(&copy)?;
    let host = Host::of(platform).await?;
    host.admin.delete_all().await?;
    let mut restores = Vec::new();
    for _ in 0..RESTORES {
        let asked = Instant::now();
        let instance = host
            .restore(name)
            .await
            .with_context(|| format!("{name} after its deploy"))?;
        restores.push(asked.elapsed().as_secs_f64() * 1e3);
        host.admin.delete(&instance).await?;
    }
    platform.delete(name)?;
    Ok(restores)
}

fn print(record: &Record) {
    println!("\n{}", record.taken);
    println!("\nThe first restore after a deploy, over the last {LATER} of {RESTORES}; medians of the deploys, ms\n");
    let mut table = table(&["function", "deploys", "first", "later", "first / later"], 0);
    for row in &record.rows {
        table.add_row([
            row.function.clone(),
            row.deploys.len().to_string(),
            ms(row.first()),
            ms(row.later()),
            format!("{:.2}", row.first() / row.later()),
        ]);
    }
    println!("{table}");
}

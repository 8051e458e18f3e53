//! `fn demo`: the life of a function in one table, as `make up` shows it, and its restores as bars next to the boot.
//! Every row is a real invocation through the gateway. A row whose `X-Fn-Start` differs from what it claims is an
//! error.

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rekindle_wire::api::{InstanceState, StartKind, VersionInfo};
use rekindle_wire::{FunctionId, function_config, headers};
use reqwest::Method;
use serde::Serialize;

use super::deploy::{self, DeployedVersion};
use super::invoke::{Head, InvokeOutcome, platform_error, timing_line};
use crate::args::DemoArgs;
use crate::client::{Client, Release};
use crate::show::{self, Steps, Tone};

const DEPLOY_LIMIT: Duration = Duration::from_secs(600);
const CALL_LIMIT: Duration = Duration::from_secs(60);
/// How long an instance may take to go, beyond its idle time.
const ZERO_LIMIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(100);
/// Pause between two restores.
const RESTORE_PAUSE: Duration = Duration::from_millis(200);
/// Number of restores shown: the first after the deploy and those that follow it.
const RESTORES: usize = 10;
/// Columns of the longest bar.
const BAR: f64 = 48.0;
/// Eighths of a column.
const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];

#[derive(Debug, Clone, Serialize)]
struct Row {
    start: StartKind,
    /// Duration as the client saw it: from sending until the last byte.
    ms: f64,
    /// The platform's measurements (Server-Timing): phases with milliseconds.
    timing: Vec<(String, f64)>,
    instance: String,
}

#[derive(Debug, Clone, Serialize)]
struct DemoRun {
    version: VersionInfo,
    booted: Row,
    warm: Row,
    /// Time from the last response until no instance was left.
    zero_after_ms: f64,
    restored: Row,
    /// The restores after that one, each of another instance.
    again: Vec<Row>,
}

impl DemoRun {
    /// Checks that each row is what it claims to show.
    fn check(&self) -> Result<()> {
        let name = &self.version.function;
        let once = [
            (&self.booted, StartKind::Booted),
            (&self.warm, StartKind::Warm),
            (&self.restored, StartKind::Restored),
        ];
        let again = self.again.iter().map(|row| (row, StartKind::Restored));
        for (row, wanted) in once.into_iter().chain(again) {
            if row.start != wanted {
                bail!(
                    "{name}: the platform started it {}, not {wanted} as it should have: see `fn logs {name}`",
                    row.start
                );
            }
        }
        Ok(())
    }
}

/// Deploys the function, invokes it in each way, and prints the table.
pub(crate) async fn run(client: &Client, args: &DemoArgs) -> Result<ExitCode> {
    let quiet = args.listing.json;
    let copy = tempfile::tempdir().context("no temporary directory")?;
    copy_folder(&args.path, copy.path())?;
    shorten_idle(&copy.path().join(function_config::FILE_NAME), &args.idle)?;
    let how = deploy::DeployOptions {
        limit: Some(DEPLOY_LIMIT),
        force: false,
        release: Release::All,
        quiet,
    };
    let DeployedVersion { version, new, .. } = deploy::deploy(client, copy.path(), how.clone()).await?;
    if let Some(why) = &version.snapshot_error {
        bail!("{} is live but has no snapshot: {why}", version.function);
    }
    if !new && !quiet {
        eprintln!("{} is unchanged: version {} stays", version.function, version.version);
    }
    let mut life = live(client, version, quiet).await?;
    if !new && life.restored.start == StartKind::Booted {
        // By now the platform knows that its snapshot cannot be used: damaged, or in an older version's form.
        let name = &life.version.function;
        eprintln!("{name}: its snapshot could not be used, see `fn logs {name}`; deploying it again");
        let DeployedVersion { version, .. } = deploy::deploy(client, copy.path(), how).await?;
        life = live(client, version, quiet).await?;
    }
    life.check()?;
    if quiet {
        show::print_json(&life)?;
    } else {
        print(client, &life);
    }
    Ok(ExitCode::SUCCESS)
}

/// Invokes it booted, warm, and restored after it has gone to zero.
async fn live(client: &Client, version: VersionInfo, quiet: bool) -> Result<DemoRun> {
    let name = version.function.clone();
    let steps = Steps::new(quiet);
    steps.step(format!("{name}: booting a fresh instance"));
    let booted = invoke(client, &name, Some(StartKind::Booted)).await?;
    steps.step(format!("{name}: calling it again"));
    let warm = invoke(client, &name, None).await?;
    let last = Instant::now();
    steps.step(format!(
        "{name}: waiting until its last instance has gone, {} idle",
        show::duration(version.config.idle())
    ));
    until_zero(client, &name, version.config.idle() + ZERO_LIMIT).await?;
    let zero_after_ms = last.elapsed().as_secs_f64() * 1_000.0;
    steps.step(format!("{name}: calling it, which restores it"));
    let restored = invoke(client, &name, None).await?;
    let mut again = Vec::new();
    if restored.start == StartKind::Restored {
        steps.step(format!("{name}: restoring others"));
        for _ in 1..RESTORES {
            // One at a time: meanwhile the sandbox that the previous one took is replaced.
            tokio::time::sleep(RESTORE_PAUSE).await;
            again.push(invoke(client, &name, Some(StartKind::Restored)).await?);
        }
    }
    steps.finish();
    Ok(DemoRun {
        version,
        booted,
        warm,
        zero_after_ms,
        restored,
        again,
    })
}

async fn invoke(client: &Client, name: &FunctionId, force: Option<StartKind>) -> Result<Row> {
    let mut request = client
        .request(Method::GET, &format!("/function/{name}"))
        .timeout(CALL_LIMIT);
    if let Some(start) = force {
        request = request.header(headers::FORCE_START, start.as_str());
    }
    let started = Instant::now();
    let response = client.send(request).await?;
    let head = Head::of(&response);
    let response = match platform_error(response).await? {
        InvokeOutcome::Platform(error) => return Err(error.into()),
        InvokeOutcome::Function(response) => response,
    };
    response
        .bytes()
        .await
        .with_context(|| format!("{name}: the response ended early"))?;
    let ms = started.elapsed().as_secs_f64() * 1_000.0;
    if !head.status.is_success() {
        bail!("{name}: the function answered {}: see `fn logs {name}`", head.status);
    }
    let start = head.start.unwrap_or_default();
    Ok(Row {
        start: start
            .parse()
            .map_err(|e| anyhow::anyhow!("{name}: {}: {e}", headers::START))?,
        ms,
        timing: head.timing,
        instance: head.instance.unwrap_or_default(),
    })
}

async fn until_zero(client: &Client, name: &FunctionId, limit: Duration) -> Result<()> {
    let deadline = Instant::now() + limit;
    loop {
        let instances = client.instances().await?;
        let left = instances
            .iter()
            .filter(|i| i.function == *name && i.state != InstanceState::Stopping)
            .count();
        if left == 0 {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("{name}: {left} instances are still there after {limit:?}: see `fn instances`");
        }
        tokio::time::sleep(POLL).await;
    }
}

fn print(client: &Client, life: &DemoRun) {
    let name = &life.version.function;
    say!();
    let mut table = show::table(["", "LATENCY", "OF IT IN THE PLATFORM"]);
    let cells = |label: &str, tone, row: &Row| {
        let ms = format!("{:>9}", show::millis(row.ms));
        [show::tinted(label, tone), ms, timing_line(&row.timing)]
    };
    table.add_row(cells("booted", Tone::Warning, &life.booted));
    table.add_row(cells("warm", Tone::Good, &life.warm));
    table.add_row([
        show::tinted("gone to zero", Tone::Faint),
        String::new(),
        format!("after {}", show::millis(life.zero_after_ms)),
    ]);
    table.add_row(cells("restored, the first", Tone::Good, &life.restored));
    if let Some(last) = life.again.last() {
        let label = format!("restored, number {}", life.again.len() + 1);
        table.add_row(cells(&label, Tone::Good, last));
    }
    show::print_table(&table);
    say!();
    for line in bars(&life.booted, std::iter::once(&life.restored).chain(&life.again)) {
        say!("{line}");
    }
    say!();
    if let Some(snapshot) = &life.version.snapshot {
        say!("snapshot   {}", super::describe::snapshot_line(snapshot));
    }
    say!("try        curl {}", client.address(&format!("/function/{name}")));
}

/// A bar for the boot and for each restore, as long as they took.
fn bars<'a>(booted: &'a Row, restores: impl Iterator<Item = &'a Row>) -> Vec<String> {
    let restores: Vec<_> = restores.collect();
    let longest = restores.iter().fold(booted.ms, |longest, row| longest.max(row.ms));
    let line = |label: String, row: &Row, tone| {
        let bar = show::tinted(&bar(row.ms / longest), tone);
        format!("{label:<11} {bar} {}", show::millis(row.ms))
    };
    let restored = restores.iter().enumerate().map(|(n, row)| {
        let label = if n == 0 {
            "restored  1".to_owned()
        } else {
            format!("{:>11}", n + 1)
        };
        line(label, row, Tone::Good)
    });
    std::iter::once(line("booted".to_owned(), booted, Tone::Warning))
        .chain(restored)
        .collect()
}

/// A bar for a share of the longest.
fn bar(share: f64) -> String {
    let eighths = (share.clamp(0.0, 1.0) * BAR * 8.0).round() as usize;
    format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
}

/// Copies a folder of plain files.
fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    let entries = fs::read_dir(from).with_context(|| format!("{}: the folder cannot be read", from.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("{}: the folder cannot be read", from.display()))?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            fs::create_dir(&target).with_context(|| format!("{}: cannot be made", target.display()))?;
            copy_folder(&path, &target)?;
        } else {
            fs::copy(&path, &target).with_context(|| format!("{}: cannot be copied", path.display()))?;
        }
    }
    Ok(())
}

/// Replaces the config's `idle`, or adds it at the top.
fn shorten_idle(path: &Path, idle: &str) -> Result<()> {
    let text = fs::read_to_string(path).with_context(|| format!("{}: cannot be read", path.display()))?;
    fs::write(path, with_idle(&text, idle)).with_context(|| format!("{}: cannot be written", path.display()))
}

fn with_idle(text: &str, idle: &str) -> String {
    let others = text
        .lines()
        .filter(|l| l.split('=').next().map(str::trim) != Some("idle"));
    let mut out = format!("idle = \"{idle}\"\n");
    for line in others {
        out.push_str(line);
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_what_they_show_of_the_longest() {
        let row = |ms: f64| Row {
            start: StartKind::Restored,
            ms,
            timing: Vec::new(),
            instance: String::new(),
        };
        let restores = [row(10.0), row(7.5)];
        let lines = bars(&row(160.0), restores.iter());
        let cells = |line: &str| {
            line.chars()
                .filter(|c| ('▉'..='▏').contains(c) || *c == '█')
                .collect::<String>()
        };
        assert_eq!(cells(&lines[0]), "█".repeat(48));
        assert_eq!((cells(&lines[1]).as_str(), cells(&lines[2]).as_str()), ("███", "██▎"));
        assert!(
            lines[1].starts_with("restored  1 ") && lines[2].contains(" 2 "),
            "{lines:?}"
        );
    }

    #[test]
    fn the_idle_time_is_replaced_wherever_it_stood() {
        let head = "name = \"a\"\nruntime = \"python\"\nentry = \"main.handler\"\n";
        for text in [
            format!("{head}idle = \"60s\" # long\n[env]\nA = \"b\"\n"),
            format!("{head}[env]\nA = \"b\"\n"),
        ] {
            let config = function_config::parse(&with_idle(&text, "3s")).unwrap();
            assert_eq!(config.idle_ms, 3_000);
            assert_eq!(config.env["A"], "b");
        }
    }
}

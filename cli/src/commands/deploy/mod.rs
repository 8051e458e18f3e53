//! `fn deploy`: reads `fn.toml`, runs its build command, packs the folder, uploads it, and follows the version until it
//! is live.

mod all;
mod canary;
mod image;
mod locks;
mod pack;
pub(crate) mod packaged;
mod upload;

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rekindle_wire::api::{VersionInfo, VersionState, WorkerState};
use rekindle_wire::{FunctionId, function_config};

use super::describe::{NO_SNAPSHOT_WANTED, phases_line, rehearsal_line, reseeded_line, reused_line, snapshot_line};
use super::diff;
use crate::args::DeployArgs;
use crate::client::{Client, Release, is_passing};
use crate::show::{self, Steps, Tone};
use packaged::Packaged;

const POLL: Duration = Duration::from_millis(150);
/// Default wait for a deploy, in addition to two boots.
const USUAL_WAIT: Duration = Duration::from_secs(900);
/// How long a version may be in one state before its duration is printed.
const STATE_FOR_LONG: Duration = Duration::from_secs(5);
/// How often the duration is then printed: on a terminal, and elsewhere, where each time is a line.
const SAID_EVERY: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(15)];
/// How long a version may be queued before the reason is printed.
const QUEUED_FOR_LONG: Duration = Duration::from_secs(3);

#[derive(Debug, Clone)]
pub(crate) struct DeployOptions {
    /// Longest wait until the version can serve. By default 900 seconds and two boots.
    pub(crate) limit: Option<Duration>,
    /// Whether an unchanged folder makes a new version.
    pub(crate) force: bool,
    /// What the version serves once it can.
    pub(crate) release: Release,
    /// Whether no progress is shown.
    pub(crate) quiet: bool,
}

#[derive(Debug)]
pub(crate) struct DeployedVersion {
    pub(crate) version: VersionInfo,
    /// Whether the deploy made it.
    pub(crate) new: bool,
    /// Whether it was to serve.
    serves: bool,
}

impl DeployedVersion {
    /// What the version is now.
    fn state(&self) -> String {
        match self.serves {
            true => show::tinted("live", Tone::Good),
            false => format!("{} without traffic", show::tinted("ready", Tone::Good)),
        }
    }
}

/// Deploys the folder and prints where the function is.
pub(crate) async fn run(client: &Client, args: &DeployArgs) -> Result<ExitCode> {
    let started = Instant::now();
    let how = DeployOptions {
        limit: args.wait.map(Duration::from_secs),
        force: args.force,
        release: match &args.canary {
            Some(steps) => Release::Grow(steps.clone(), args.step_time),
            None if args.no_traffic => Release::Hold,
            None => Release::All,
        },
        quiet: args.json,
    };
    if args.all {
        return all::run(client, &args.path, how, args.json).await;
    }
    let folder = folder_of(&args.path);
    if args.dry_run {
        return diff::dry_run(client, Packaged::of(&folder)?, args.json).await;
    }
    let deployed = deploy(client, &folder, how).await?;
    let DeployedVersion { version, new, serves } = &deployed;
    if let Some(before) = remember(&version.function, &folder).filter(|_| *new && version.version.0 > 1) {
        eprintln!(
            "{} {} was deployed from {} before: this version takes its place; deploy that folder again to take it back",
            show::tinted_err("another folder:", Tone::Warning),
            version.function,
            before.display()
        );
    }
    if args.json {
        show::print_json(version)?;
    } else if *new {
        say!(
            "{} version {} is {} after {}",
            version.function,
            version.version,
            deployed.state(),
            show::duration(started.elapsed())
        );
        print(client, version, *serves);
    } else {
        say!(
            "{} is unchanged: version {} is {}; --force makes a new one all the same",
            version.function,
            version.version,
            deployed.state()
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Deploys `folder` and waits until the version can serve, or until it has taken over as a canary.
pub(crate) async fn deploy(client: &Client, folder: &Path, how: DeployOptions) -> Result<DeployedVersion> {
    let begun = Instant::now();
    let folder = folder.to_owned();
    // What it runs and reads takes long, and other folders are being uploaded meanwhile.
    let packaged = tokio::task::spawn_blocking(move || Packaged::of(&folder)).await??;
    packaged.check_entry()?;
    let Packaged { config, packed } = packaged;
    let growth = how.release.growth();
    let steps = growth.map_or(Duration::ZERO, |(steps, step)| canary::duration(steps, step));
    let deadline = begun + how.limit.unwrap_or(USUAL_WAIT + config.boot_timeout() * 2 + steps);
    let (version, new) = upload::upload(client, packed, &how).await?;
    let mut version = follow(client, version, deadline, how.quiet).await?;
    match version.error.take() {
        Some(error) if version.state == VersionState::Failed => Err(error.into()),
        error => {
            if growth.is_some() {
                canary::follow(client, &version, deadline, how.quiet).await?;
            }
            let version = VersionInfo { error, ..version };
            let serves = !matches!(how.release, Release::Hold);
            Ok(DeployedVersion { version, new, serves })
        }
    }
}

/// Notes which folder this user deployed the function from. Returns the previous one, if it is another and still has
/// the function's config: two folders with one name are a slip. Any failure counts as no previous folder.
fn remember(function: &FunctionId, folder: &Path) -> Option<PathBuf> {
    let state = env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let state = state.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".local/state")))?;
    remember_in(&state.join("rekindle/deployed"), function, folder)
}

fn remember_in(notes: &Path, function: &FunctionId, folder: &Path) -> Option<PathBuf> {
    let folder = folder.canonicalize().ok()?;
    let note = notes.join(function.as_str());
    let before = fs::read(&note).ok().map(|path| PathBuf::from(OsString::from_vec(path)));
    fs::create_dir_all(notes).ok()?;
    fs::write(&note, folder.as_os_str().as_bytes()).ok()?;
    let before = before.filter(|before| *before != folder)?;
    let text = fs::read_to_string(before.join(function_config::FILE_NAME)).ok()?;
    (function_config::parse(&text).ok()?.name.as_str() == function.name()).then_some(before)
}

/// The function's folder: `path`, or its parent if `path` is the config itself.
fn folder_of(path: &Path) -> PathBuf {
    if path.file_name().is_some_and(|n| n == function_config::FILE_NAME) && path.is_file() {
        let parent = path.parent().unwrap_or(Path::new("."));
        return if parent == Path::new("") {
            PathBuf::from(".")
        } else {
            parent.to_owned()
        };
    }
    path.to_owned()
}

/// Polls the version until it is live or has failed.
async fn follow(client: &Client, mut version: VersionInfo, deadline: Instant, quiet: bool) -> Result<VersionInfo> {
    let steps = Steps::new(quiet);
    let mut shown: Option<VersionState> = None;
    let (mut since, mut said) = (Instant::now(), Duration::ZERO);
    let said_every = SAID_EVERY[usize::from(steps.is_plain())];
    let long = Instant::now() + QUEUED_FOR_LONG;
    let mut explained = false;
    while !version.state.is_final() {
        if shown != Some(version.state) {
            steps.step(format!(
                "{} version {}: {}",
                version.function, version.version, version.state
            ));
            shown = Some(version.state);
            (since, said) = (Instant::now(), Duration::ZERO);
        }
        let elapsed = since.elapsed();
        if version.state != VersionState::Queued && elapsed >= STATE_FOR_LONG.max(said + said_every) {
            said = elapsed;
            steps.step(format!(
                "{} version {}: {}, for {} s{}",
                version.function,
                version.version,
                version.state,
                elapsed.as_secs(),
                match version.state {
                    VersionState::Booting => format!(" of at most {}", version.config.boot_timeout().as_secs()),
                    _ => String::new(),
                }
            ));
        }
        if version.state == VersionState::Queued && !explained && Instant::now() > long {
            explained = true;
            // Only a hint: whoever may deploy need not see the workers.
            let workers = client.workers().await.unwrap_or_default();
            let what = match workers.iter().any(|w| w.state == WorkerState::Ready) {
                true => "its turn, or for room on a worker",
                false => {
                    "a worker: none takes anything new, see `fn workers`; `fn undrain` one or start one with \
                     `fn worker`"
                }
            };
            steps.step(format!(
                "{} version {}: queued, waits for {what}",
                version.function, version.version
            ));
        }
        if Instant::now() > deadline {
            bail!(
                "version {} of {} is still {} and goes on by itself: look with `fn describe {}`, or wait longer with \
                 --wait",
                version.version,
                version.function,
                version.state,
                version.function
            );
        }
        tokio::time::sleep(POLL).await;
        version = match client.version(&version.function, version.version).await {
            // It goes on meanwhile. The deadline ends the wait.
            Err(error) if is_passing(&error) => version,
            asked => asked?,
        };
    }
    steps.finish();
    Ok(version)
}

fn print(client: &Client, version: &VersionInfo, serves: bool) {
    if let Some(reused) = version.reused {
        say!("  reused    {}", reused_line(reused));
    }
    if !version.phases.is_empty() {
        say!("  phases    {}", phases_line(version));
    }
    if let Some(snapshot) = &version.snapshot {
        say!("  snapshot  {}", snapshot_line(snapshot));
        for refused in &snapshot.refused_warmups {
            say!("  warm-up   {} {refused}", show::tinted("refused:", Tone::Warning));
        }
        if let Some(rehearsal) = &snapshot.rehearsal {
            say!("  rehearsal {}", rehearsal_line(rehearsal));
            if let Some(warning) = &rehearsal.warning {
                say!("  rehearsal {} {warning}", show::tinted("the copy:", Tone::Warning));
            }
        }
        if let Some(randomness) = &snapshot.randomness {
            say!("  random    {}", reseeded_line(randomness));
            for repeating in &randomness.repeating {
                let name = show::tinted(&format!("{}:", repeating.name), Tone::Warning);
                say!("  random    {name} {}", repeating.advice);
            }
        }
    }
    match (&version.snapshot, &version.snapshot_error) {
        (_, Some(why)) => say!("  snapshot  {} {why}", show::tinted("none:", Tone::Warning)),
        (None, None) => say!("  snapshot  none: {NO_SNAPSHOT_WANTED}"),
        (Some(_), None) => {}
    }
    if !serves {
        return;
    }
    let url = client.address(&format!("/function/{}", version.function));
    say!("  url       {url}");
    say!("  try       curl {url}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_config_itself_stands_for_its_folder() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("fn.toml");
        fs::write(&file, "").unwrap();
        assert_eq!(folder_of(&file), dir.path());
        assert_eq!(folder_of(dir.path()), dir.path());
    }

    #[test]
    fn another_folder_of_a_name_is_told_as_long_as_the_first_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let [notes, a, b] = ["notes", "a", "b"].map(|name| dir.path().join(name));
        for folder in [&a, &b] {
            fs::create_dir(folder).unwrap();
            fs::write(
                folder.join("fn.toml"),
                "name = \"x\"\nruntime = \"python\"\nentry = \"m.h\"\n",
            )
            .unwrap();
        }
        let remembered = |folder: &Path| remember_in(&notes, &"x".parse().unwrap(), folder);
        assert_eq!([remembered(&a), remembered(&a)], [None, None]);
        assert_eq!(remembered(&b), Some(a.canonicalize().unwrap()));
        fs::remove_dir_all(&b).unwrap();
        assert_eq!(remembered(&a), None);
    }
}

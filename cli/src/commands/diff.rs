//! `fn diff` and `fn deploy --dry-run`: what another version, or a folder, would change. Files are compared by their
//! digests. Nothing is uploaded. A dry run also tells what the deploy would fail for, as far as that is known without a
//! build.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use rekindle_wire::api::SourceFile;
use rekindle_wire::function_config::{FunctionConfig, SettingChange, Work};
use rekindle_wire::{ApiError, ErrorCode, FunctionId, VersionNumber};
use serde::Serialize;
use serde_json::Value;

use super::deploy::packaged::Packaged;
use crate::args::DiffArgs;
use crate::client::Client;
use crate::show::{self, Tone};

/// Exit code if something differs.
const DIFFERS: u8 = 3;
/// Maximum number of files that are named.
const FILES_SHOWN: usize = 100;

/// The difference between a version and another, or a folder.
#[derive(Debug, Serialize)]
pub(crate) struct Difference {
    function: FunctionId,
    /// The version compared with. `None` if the function is new.
    from: Option<VersionNumber>,
    /// The other version. `None` for a folder.
    to: Option<VersionNumber>,
    /// What a deploy would do to get there.
    work: Work,
    settings: Vec<SettingChange>,
    files: FileChanges,
    /// What a deploy would fail for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<String>,
}

/// Paths of files that differ.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct FileChanges {
    added: Vec<String>,
    changed: Vec<String>,
    removed: Vec<String>,
}

/// A version, or a folder that could become one.
struct Side {
    version: Option<VersionNumber>,
    config: FunctionConfig,
    files: Vec<SourceFile>,
}

/// Compares two versions, or a version with a folder.
pub(crate) async fn run(client: &Client, args: &DiffArgs) -> Result<ExitCode> {
    let name = client.function_id(&args.name);
    let summary = client.function(&name).await?.summary;
    let Some(live) = summary.live else {
        bail!("no version of {name} is live, with which others could be compared: `fn versions {name}` lists them");
    };
    let from = args.from.unwrap_or(live);
    let to = match &args.dir {
        Some(folder) => {
            let packaged = Packaged::of(folder)?;
            let named = FunctionId::new(client.namespace(), &packaged.config.name);
            if named.name() != name.name() {
                bail!("{} is {named}, not {name}: name its own function", folder.display());
            }
            Side::of(packaged)
        }
        // What is live now would be changed.
        None if args.from.is_some() => side(client, &name, args.to.unwrap_or(live)).await?,
        None => side(client, &name, summary.newest).await?,
    };
    let from = side(client, &name, from).await?;
    finish(&difference(name, Some(from), to), args.json)
}

/// Prints what a deploy of this folder would change.
pub(crate) async fn dry_run(client: &Client, packaged: Packaged, json: bool) -> Result<ExitCode> {
    let name = FunctionId::new(client.namespace(), &packaged.config.name);
    let live = match client.function(&name).await {
        Ok(detail) => detail.summary.live,
        Err(error) if is_unknown(&error) => None,
        Err(error) => return Err(error),
    };
    let from = match live {
        Some(version) => Some(side(client, &name, version).await?),
        None => None,
    };
    let mut problems: Vec<_> = packaged.check_entry().err().map(|e| e.message).into_iter().collect();
    problems.extend(client.check_deploy(&name, &packaged.config).await?);
    let difference = Difference {
        problems,
        ..difference(name, from, Side::of(packaged))
    };
    finish(&difference, json)
}

fn is_unknown(error: &anyhow::Error) -> bool {
    let api = error.downcast_ref::<ApiError>();
    api.is_some_and(|error| error.code == ErrorCode::FunctionNotFound)
}

async fn side(client: &Client, name: &FunctionId, version: VersionNumber) -> Result<Side> {
    let info = client.version(name, version).await?;
    Ok(Side {
        version: Some(version),
        config: info.config,
        files: client.files(name, version).await?.files,
    })
}

impl Side {
    fn of(packaged: Packaged) -> Self {
        Self {
            version: None,
            config: packaged.config,
            files: packaged.packed.listing,
        }
    }
}

fn difference(function: FunctionId, from: Option<Side>, to: Side) -> Difference {
    let new = |files| FileChanges::between(&[], files);
    let (settings, files) = match &from {
        Some(from) => (
            from.config.changes(&to.config),
            FileChanges::between(&from.files, &to.files),
        ),
        None => (Vec::new(), new(&to.files)),
    };
    let of_settings = settings.iter().map(SettingChange::work).max();
    let work = match from.is_none() || !files.is_empty() {
        true => Work::Build,
        false => of_settings.unwrap_or(Work::Nothing),
    };
    Difference {
        function,
        from: from.and_then(|from| from.version),
        to: to.version,
        work,
        settings,
        files,
        problems: Vec::new(),
    }
}

impl FileChanges {
    fn between(old: &[SourceFile], new: &[SourceFile]) -> Self {
        let by_path = |files| -> BTreeMap<&str, &SourceFile> {
            let files: &[SourceFile] = files;
            files.iter().map(|file| (file.path.as_str(), file)).collect()
        };
        let (old, new) = (by_path(old), by_path(new));
        let mut changes = Self::default();
        for (path, file) in &new {
            match old.get(path) {
                None => changes.added.push((*path).to_owned()),
                Some(before) if before != file => changes.changed.push((*path).to_owned()),
                Some(_) => {}
            }
        }
        let gone = old.keys().filter(|path| !new.contains_key(*path));
        changes.removed.extend(gone.map(|path| (*path).to_owned()));
        changes
    }

    fn is_empty(&self) -> bool {
        self.added.is_empty() && self.changed.is_empty() && self.removed.is_empty()
    }

    /// The changes in the order of their paths, each with its sign.
    fn lines(&self) -> Vec<(char, &str, Tone)> {
        let of = |sign, paths, tone| {
            let paths: &Vec<String> = paths;
            paths.iter().map(move |path| (sign, path.as_str(), tone))
        };
        let mut lines: Vec<_> = of('+', &self.added, Tone::Good)
            .chain(of('~', &self.changed, Tone::Warning))
            .chain(of('-', &self.removed, Tone::Bad))
            .collect();
        lines.sort_by(|a, b| match a.1.cmp(b.1) {
            Ordering::Equal => a.0.cmp(&b.0),
            order => order,
        });
        lines
    }
}

fn finish(difference: &Difference, json: bool) -> Result<ExitCode> {
    match json {
        true => show::print_json(difference)?,
        false => print(difference),
    }
    Ok(match difference.work {
        _ if !difference.problems.is_empty() => ExitCode::FAILURE,
        Work::Nothing => ExitCode::SUCCESS,
        _ => ExitCode::from(DIFFERS),
    })
}

fn print(difference: &Difference) {
    let Difference { function, from, to, .. } = difference;
    let other = to.map_or_else(|| "this folder".to_owned(), |to| format!("version {to}"));
    match from {
        None => say!("{function} would be a new function, made of {other}"),
        Some(from) if difference.work == Work::Nothing => say!("{function}: {other} is the same as version {from}"),
        Some(from) => say!("{function}: from version {from} to {other}"),
    }
    let width = difference.settings.iter().map(|change| change.setting.len()).max();
    for change in &difference.settings {
        let shown = |value| setting(&change.setting, value);
        let (old, new) = (shown(&change.old), shown(&change.new));
        say!(
            "  {:width$}  {old} -> {new}",
            change.setting,
            width = width.unwrap_or(0)
        );
    }
    let lines = difference.files.lines();
    for (sign, path, tone) in lines.iter().take(FILES_SHOWN) {
        say!("  {} {path}", show::tinted(&sign.to_string(), *tone));
    }
    if lines.len() > FILES_SHOWN {
        say!(
            "  and {} more: --json names all",
            show::count(lines.len() - FILES_SHOWN, "file")
        );
    }
    for problem in &difference.problems {
        say!("  {} {problem}", show::tinted("would fail:", Tone::Bad));
    }
    if !difference.problems.is_empty() {
        return;
    }
    let deploy = match difference.work {
        Work::Nothing => return,
        Work::Settings => "takes over the snapshot as it is",
        Work::Boot => "boots it for a new snapshot, and builds nothing",
        Work::Build => "builds it, boots it, and takes a snapshot",
    };
    say!("a deploy {deploy}");
}

/// A setting's value as fn.toml has it.
fn setting(name: &str, value: &Value) -> String {
    match (name, value, value.as_u64()) {
        (_, Value::Null, _) => "none".to_owned(),
        ("memory" | "tmp", _, Some(bytes)) => show::bytes(bytes),
        ("timeout" | "boot_timeout" | "idle" | "park" | "async.max_age", _, Some(ms)) => {
            show::duration(Duration::from_millis(ms))
        }
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use rekindle_wire::api::SourceKind;
    use rekindle_wire::function_config;

    use super::*;

    fn side(settings: &str, files: &[(&str, &str)]) -> Side {
        let text = format!("name = \"x\"\nruntime = \"python\"\nentry = \"m.h\"\n{settings}");
        let file = |(path, digest): &(&str, &str)| SourceFile {
            path: (*path).to_owned(),
            kind: SourceKind::File,
            digest: (*digest).to_owned(),
        };
        Side {
            version: Some(VersionNumber(1)),
            config: function_config::parse(&text).unwrap(),
            files: files.iter().map(file).collect(),
        }
    }

    fn between(old: Side, new: Side) -> Difference {
        difference("x".parse().unwrap(), Some(old), new)
    }

    #[test]
    fn files_are_compared_by_path_and_digest_and_any_difference_is_built() {
        let old = side("", &[("a", "1"), ("b", "1"), ("c", "1")]);
        let told = between(old, side("memory = \"64MiB\"", &[("a", "1"), ("b", "2"), ("d", "1")]));
        let lines: Vec<_> = told
            .files
            .lines()
            .iter()
            .map(|(sign, path, _)| format!("{sign}{path}"))
            .collect();
        assert_eq!(
            (lines, told.work),
            (["~b", "-c", "+d"].map(str::to_owned).into(), Work::Build)
        );
        let of_settings = |settings| between(side("", &[("a", "1")]), side(settings, &[("a", "1")])).work;
        assert_eq!(of_settings(""), Work::Nothing);
        assert_eq!(of_settings("idle = \"9s\""), Work::Settings);
        assert_eq!(of_settings("idle = \"9s\"\nmemory = \"64MiB\""), Work::Boot);
        let new = difference("x".parse().unwrap(), None, side("", &[]));
        assert_eq!(new.work, Work::Build, "a new function");
    }

    #[test]
    fn values_are_shown_in_the_units_of_the_config() {
        let shown = |name, value: Value| setting(name, &value);
        assert_eq!(shown("memory", (64 << 20).into()), "64.0 MiB");
        assert_eq!(shown("timeout", 3_000.into()), "3.00 s");
        assert_eq!(shown("env.A", "b".into()), "\"b\"");
        assert_eq!(shown("env.A", Value::Null), "none");
    }
}

//! Where settings come from: the command line, above its variables, above the table `[events]` of the settings file.

use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _, Parser};
use rekindle_wire::Namespace;
use rekindle_wire::settings_file::{self, PATH};
use serde::Serialize;
use toml::{Table, Value};

use crate::config::Config;

/// The former file, which had nothing but what is the table now. It is read for one release.
const FORMER_FILE: &str = "/etc/rekindle/events.toml";
/// Names another settings file.
const VARIABLE: &str = "FN_CONFIG";
const FORMER_VARIABLE: &str = "FN_EVENTS_CONFIG";
const TABLE: &str = "events";
const DEFAULT: &str = "default";

/// Reads queues and invokes functions with their messages.
#[derive(Debug, Parser, Serialize)]
#[command(name = "rekindle-events", version)]
#[serde(rename_all = "kebab-case")]
struct Args {
    /// The settings file, of which the table `events` is read [default: /etc/rekindle/rekindle.toml] [env: FN_CONFIG]
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    config: Option<PathBuf>,
    /// Check the settings, show what is in force and where it comes from, and end
    #[arg(long)]
    #[serde(skip)]
    check: bool,
    /// Address of the gateway
    #[arg(long, value_name = "URL", env = "FN_EVENTS_GATEWAY")]
    gateway: Option<String>,
    /// File with the authority of an https gateway's certificate, instead of those that this machine trusts
    #[arg(long, value_name = "FILE", env = "FN_EVENTS_CA")]
    ca: Option<PathBuf>,
    /// File with a key that has the role invoker in the namespaces
    #[arg(long, value_name = "FILE", env = "FN_EVENTS_KEY_FILE")]
    key_file: Option<PathBuf>,
    /// Namespaces whose sources are read, separated by commas
    #[arg(long, value_name = "NAMES", env = "FN_EVENTS_NAMESPACES", value_delimiter = ',')]
    namespaces: Option<Vec<Namespace>>,
    /// Where health and metrics are served
    #[arg(long, value_name = "ADDRESS", env = "FN_EVENTS_LISTEN")]
    listen: Option<SocketAddr>,
    /// Maximum number of batches in flight, of all sources together
    #[arg(long, value_name = "NUMBER", env = "FN_EVENTS_BATCHES")]
    batches: Option<u32>,
    /// Seconds between two looks at which sources there are
    #[arg(long, value_name = "SECONDS", env = "FN_EVENTS_POLL_SECONDS")]
    poll_seconds: Option<u32>,
    /// Seconds that batches in flight get when the program is stopped
    #[arg(long, value_name = "SECONDS", env = "FN_EVENTS_STOP_SECONDS")]
    stop_seconds: Option<u32>,
}

/// What the command line, variables and the settings file say.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Whether to show them only.
    pub(crate) is_check: bool,
    /// Where they are, for people.
    place: String,
    table: Table,
    /// What is said over it, each with where that was.
    over: Vec<(String, Value, String)>,
}

impl Settings {
    /// Reads the command line, and the file that it names. Ends the program where the command line asks for help or is
    /// wrong.
    ///
    /// # Errors
    /// When a file cannot be read, or none has settings of this program.
    pub(crate) fn read() -> Result<Self> {
        let matches = Args::command().get_matches();
        let variable = |name| {
            std::env::var_os(name)
                .filter(|path| !path.is_empty())
                .map(PathBuf::from)
        };
        let named = matches.get_one("config").cloned().or_else(|| variable(FORMER_VARIABLE));
        let (files, are_named) = match (named, variable(VARIABLE)) {
            (Some(named), _) => (vec![named], true),
            // That may be meant for `fn` alone.
            (None, Some(named)) => (vec![named, FORMER_FILE.into()], true),
            (None, None) => (vec![PATH.into(), FORMER_FILE.into()], false),
        };
        Self::of(&matches, &files, are_named)
    }

    fn of(matches: &ArgMatches, files: &[PathBuf], are_named: bool) -> Result<Self> {
        let args = Args::from_arg_matches(matches).unwrap_or_else(|error| error.exit());
        let found = find(files, are_named)?;
        let source = |key: &str| {
            let id = key.replace('-', "_");
            match matches.value_source(&id) {
                Some(ValueSource::EnvVariable) => format!("$FN_EVENTS_{}", id.to_uppercase()),
                _ => format!("--{key}"),
            }
        };
        let over = Table::try_from(&args).context("the command line")?.into_iter();
        let over = over.map(|(key, value)| {
            let from = source(&key);
            (key, value, from)
        });
        Ok(Self {
            is_check: args.check,
            place: found.place,
            table: found.table,
            over: over.collect(),
        })
    }

    /// The settings in force, checked.
    ///
    /// # Errors
    /// What is wrong, and where settings came from.
    pub(crate) fn config(&self) -> Result<Config> {
        let mut table = self.table.clone();
        table.extend(self.over.iter().map(|(key, value, _)| (key.clone(), value.clone())));
        let places = std::iter::once(&self.place).chain(self.over.iter().map(|(_, _, from)| from));
        Config::parse(table).with_context(|| places.map(String::as_str).collect::<Vec<_>>().join(", "))
    }

    /// A line for each setting: its name, its value, and where that comes from.
    pub(crate) fn in_force(&self, config: &Config) -> Result<String> {
        let mut lines = String::new();
        for (key, value) in Table::try_from(config).context("the settings")? {
            let over = self.over.iter().find(|(name, ..)| *name == key);
            let from = match over {
                Some((_, _, from)) => from,
                None if self.table.contains_key(&key) => &self.place,
                None => DEFAULT,
            };
            writeln!(lines, "{key:<13} {:<30} {from}", value.to_string())?;
        }
        for server in &config.servers {
            writeln!(lines, "{:<13} {:<30} {}", "server", server.url, self.place)?;
        }
        Ok(lines)
    }
}

/// This program's settings in a file.
#[derive(Debug)]
struct Found {
    /// For people.
    place: String,
    table: Table,
}

/// The first of these files that has settings of this program. One that cannot be read is passed over if another has
/// them.
fn find(files: &[PathBuf], are_named: bool) -> Result<Found> {
    let mut problem = None;
    for path in files {
        let found = match std::fs::read_to_string(path) {
            Ok(text) => parse(path, &text),
            Err(error) if error.kind() == io::ErrorKind::NotFound && (!are_named || path == Path::new(FORMER_FILE)) => {
                Ok(None)
            }
            Err(error) => Err(error).with_context(|| format!("{} cannot be read", path.display())),
        };
        match found {
            Ok(Some(found)) => {
                if let Some(problem) = problem {
                    eprintln!("warning: {problem:#}");
                }
                return Ok(found);
            }
            Ok(None) => {}
            Err(error) => problem = problem.or(Some(error)),
        }
    }
    let names = files.iter().map(|path| path.display().to_string());
    let names = names.collect::<Vec<_>>().join(" or ");
    let none = anyhow!("there is no table [{TABLE}] in {names}: docs/how-to/read-from-queues.md has what to write");
    Err(problem.unwrap_or(none))
}

/// What a file has for this program.
fn parse(path: &Path, text: &str) -> Result<Option<Found>> {
    let shown = path.display();
    let mut file = settings_file::parse(path, text)?;
    let (place, table) = match file.remove(TABLE) {
        Some(Value::Table(table)) if path != Path::new(FORMER_FILE) => (format!("{shown} [{TABLE}]"), table),
        Some(_) => bail!("{shown}: write a table [{TABLE}], in {PATH}"),
        // In the settings file that is the table of a role.
        None if file.get("gateway").is_some_and(Value::is_str) => {
            eprintln!("warning: {shown} is read for one more release: write what it has below [{TABLE}] in {PATH}");
            (shown.to_string(), with_hyphens(file))
        }
        None => return Ok(None),
    };
    Ok(Some(Found { place, table }))
}

/// The former file's table, whose keys had `_` in place of `-`.
fn with_hyphens(table: Table) -> Table {
    let value = |value| match value {
        Value::Array(values) => {
            let values = values.into_iter().map(|value| match value {
                Value::Table(table) => Value::Table(with_hyphens(table)),
                other => other,
            });
            Value::Array(values.collect())
        }
        other => other,
    };
    let fields = table.into_iter().map(|(key, of)| (key.replace('_', "-"), value(of)));
    fields.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Settings of a file with this text, and a command line.
    fn settings(text: &str, words: &[&str]) -> Settings {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f.toml");
        std::fs::write(&file, text).unwrap();
        let words = std::iter::once("rekindle-events").chain(words.iter().copied());
        let matches = Args::command().try_get_matches_from(words).unwrap();
        Settings::of(&matches, &[file], true).unwrap()
    }

    const TABLE_OF_EVENTS: &str = r#"
listen = "0.0.0.0:1"
[gateway]
listen = "0.0.0.0:2"
[events]
gateway = "http://a"
key-file = "/k"
batches = 8
[[events.server]]
type = "nats"
url = "nats://q"
"#;

    #[test]
    fn the_command_line_wins_over_the_table_and_the_rest_of_the_file_is_others() {
        let read = settings(TABLE_OF_EVENTS, &["--gateway", "http://b/"]);
        let config = read.config().unwrap();
        assert_eq!(
            (config.gateway.as_str(), config.batches, config.listen.port()),
            ("http://b", 8, 8084)
        );
        let shown = read.in_force(&config).unwrap();
        let line = |key: &str| {
            let line = shown.lines().find(|line| line.starts_with(key)).unwrap();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(line("gateway"), "gateway \"http://b\" --gateway");
        assert_eq!(line("poll-seconds"), "poll-seconds 3 default");
        assert!(line("batches").starts_with("batches 8 /") && line("batches").ends_with("f.toml [events]"));
        assert!(line("server").starts_with("server nats://q /"));
    }

    #[test]
    fn every_setting_has_an_option() {
        Args::command().debug_assert();
        let words = [
            ["--gateway", "https://b"],
            ["--ca", "/ca"],
            ["--key-file", "/other"],
            ["--namespaces", "one,two"],
            ["--listen", "0.0.0.0:9"],
            ["--batches", "7"],
            ["--poll-seconds", "6"],
            ["--stop-seconds", "5"],
        ];
        let all = settings("[events]\n", &words.concat());
        let config = all.config().unwrap();
        let names: Vec<_> = config.namespaces.iter().map(Namespace::as_str).collect();
        assert_eq!(names, ["one", "two"]);
        assert_eq!((config.batches, config.poll_seconds, config.stop_seconds), (7, 6, 5));
        let shown = all.in_force(&config).unwrap();
        assert_eq!(shown.lines().count(), words.len(), "{shown}");
        assert!(shown.lines().all(|line| line.contains(" --")), "{shown}");
        let refused = settings(TABLE_OF_EVENTS, &["--batches", "0"]).config().unwrap_err();
        assert!(format!("{refused:#}").contains("--batches"), "{refused:#}");
    }

    #[test]
    fn the_former_file_is_read() {
        let former = "gateway = \"http://a\"\nkey_file = \"/k\"\nstop_seconds = 5\n\
                      [[server]]\ntype = \"nats\"\nurl = \"nats://q\"\ntoken_file = \"/t\"\n";
        let config = settings(former, &["--key-file", "/other"]).config().unwrap();
        assert_eq!((config.key_file, config.stop_seconds), (PathBuf::from("/other"), 5));
        assert_eq!(config.servers[0].token_file, Some(PathBuf::from("/t")));
        // But only there.
        let table = format!("[events]\n{}", former.replace("[[server]]", "[[events.server]]"));
        settings(&table, &[]).config().unwrap_err();
    }

    #[test]
    fn a_file_without_settings_of_events_is_passed_over() {
        for others in ["", "[gateway]\nlisten = \"0.0.0.0:2\"\n", "data = \"/d\"\n"] {
            assert!(parse(Path::new("f.toml"), others).unwrap().is_none(), "{others}");
        }
        parse(Path::new("f.toml"), "events = 1\n").unwrap_err();
        let dir = tempfile::tempdir().unwrap();
        let [missing, others, broken, own] = ["a", "b", "c", "d"].map(|name| dir.path().join(name));
        std::fs::write(&others, "data = \"/d\"\n").unwrap();
        std::fs::write(&broken, "password = ").unwrap();
        std::fs::write(&own, TABLE_OF_EVENTS).unwrap();
        let all = [missing.clone(), others.clone(), broken.clone(), own];
        assert_eq!(find(&all, false).unwrap().table["batches"], Value::Integer(8));
        let none = find(&all[..2], false).unwrap_err();
        assert!(none.to_string().contains("[events]"), "{none}");
        let why = |files: &[PathBuf]| find(files, true).unwrap_err().to_string();
        assert!(why(&[missing]).ends_with("cannot be read"));
        assert!(why(&[broken]).contains("is not TOML: line 1"));
    }
}

//! Where settings come from: the command line, above its variables, above the table `[events]` of the settings file.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::parser::ValueSource;
use clap::{CommandFactory as _, FromArgMatches as _, Parser};
use serde::Serialize;
use toml::{Table, Value};

use crate::config::Config;

/// The settings file of a host's roles.
const FILE: &str = "/etc/rekindle/rekindle.toml";
/// The former file, which had nothing but what is the table now. It is read for one release.
const FORMER_FILE: &str = "/etc/rekindle/events.toml";
const FORMER_VARIABLE: &str = "FN_EVENTS_CONFIG";
const TABLE: &str = "events";
const DEFAULT: &str = "default";

/// Reads queues and invokes functions with their messages.
#[derive(Debug, Parser, Serialize)]
#[command(name = "rekindle-events", version)]
#[serde(rename_all = "kebab-case")]
struct Args {
    /// The settings file, whose table [events] is read [default: /etc/rekindle/rekindle.toml]
    #[arg(long, value_name = "FILE", env = "FN_CONFIG")]
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
    namespaces: Option<Vec<String>>,
    /// Where health and metrics are served
    #[arg(long, value_name = "ADDRESS", env = "FN_EVENTS_LISTEN")]
    listen: Option<String>,
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
    /// The table's place, for people.
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
    /// When there is no file, or it has no settings of this program.
    pub(crate) fn read() -> Result<Self> {
        let matches = Args::command().get_matches();
        let args = Args::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
        let former = std::env::var_os(FORMER_VARIABLE).map(PathBuf::from);
        let files = match args.config.clone().or(former) {
            Some(named) => vec![named],
            None => [FILE, FORMER_FILE].map(PathBuf::from).into(),
        };
        let (path, found) = find(&files)?;
        if found.is_former {
            eprintln!(
                "warning: {path} is read in its former form for one release: write what it has below [{TABLE}] in \
                 {FILE}"
            );
        }
        let given = Table::try_from(&args).context("the command line")?;
        let source = |key: &str| match matches.value_source(&key.replace('-', "_")) {
            Some(ValueSource::EnvVariable) => format!("$FN_EVENTS_{}", key.replace('-', "_").to_uppercase()),
            _ => format!("--{key}"),
        };
        let over = given.into_iter().map(|(key, value)| {
            let from = source(&key);
            (key, value, from)
        });
        Ok(Self {
            is_check: args.check,
            place: if found.is_former {
                path
            } else {
                format!("{path} [{TABLE}]")
            },
            table: found.table,
            over: over.collect(),
        })
    }

    /// The settings in force, checked.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub(crate) fn config(&self) -> Result<Config> {
        let mut table = self.table.clone();
        table.extend(self.over.iter().map(|(key, value, _)| (key.clone(), value.clone())));
        Config::parse(table).with_context(|| self.place.clone())
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
    table: Table,
    /// Whether the file has nothing else.
    is_former: bool,
}

/// The first of these files that has settings of this program.
fn find(files: &[PathBuf]) -> Result<(String, Found)> {
    for path in files {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error).with_context(|| format!("{} cannot be read", path.display())),
        };
        if let Some(found) = parse(path, &text)? {
            return Ok((path.display().to_string(), found));
        }
    }
    let names = files.iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
    bail!(
        "there is no table [{TABLE}] in {}: docs/how-to/read-from-queues.md has what to write",
        names.join(" or ")
    )
}

fn parse(path: &Path, text: &str) -> Result<Option<Found>> {
    let mut file = match text.parse::<Table>() {
        Ok(file) => file,
        // Without the line itself: that of a role may have a secret.
        Err(error) => {
            let before = error.span().map_or("", |span| &text[..span.start.min(text.len())]);
            let line = before.matches('\n').count() + 1;
            bail!("{} is not TOML: line {line}: {}", path.display(), error.message())
        }
    };
    let found = match file.remove(TABLE) {
        Some(Value::Table(table)) => Some((table, false)),
        Some(_) => bail!("{}: {TABLE} must be a table: write [{TABLE}]", path.display()),
        // In the settings file that is the table of a role.
        None if file.get("gateway").is_some_and(Value::is_str) => Some((file, true)),
        None => None,
    };
    Ok(found.map(|(table, is_former)| Found {
        table: with_hyphens(table),
        is_former,
    }))
}

/// A table whose keys are as options have them. The former file's had `_` in place of `-`.
fn with_hyphens(table: Table) -> Table {
    let value = |value| match value {
        Value::Table(table) => Value::Table(with_hyphens(table)),
        Value::Array(values) => values
            .into_iter()
            .map(|value| match value {
                Value::Table(table) => Value::Table(with_hyphens(table)),
                other => other,
            })
            .collect::<Vec<_>>()
            .into(),
        other => other,
    };
    table
        .into_iter()
        .map(|(key, of)| (key.replace('_', "-"), value(of)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, over: &[(&str, &str)]) -> Settings {
        let found = parse(Path::new("f.toml"), text).unwrap().unwrap();
        let over = over
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).into(), format!("--{key}")));
        Settings {
            is_check: true,
            place: "f.toml".to_owned(),
            table: found.table,
            over: over.collect(),
        }
    }

    #[test]
    fn the_command_line_wins_over_the_table_and_the_rest_of_the_file_is_others() {
        let file = "listen = \"0.0.0.0:1\"\n[gateway]\nlisten = \"0.0.0.0:2\"\n[events]\ngateway = \"http://a\"\n\
                    key-file = \"/k\"\nbatches = 8\n[[events.server]]\ntype = \"nats\"\nurl = \"nats://q\"\n";
        let settings = read(file, &[("gateway", "http://b/")]);
        let config = settings.config().unwrap();
        assert_eq!(
            (config.gateway.as_str(), config.batches, config.listen.port()),
            ("http://b", 8, 8084)
        );
        let shown = settings.in_force(&config).unwrap();
        let line = |key: &str| {
            let line = shown.lines().find(|line| line.starts_with(key)).unwrap();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(line("gateway"), "gateway \"http://b\" --gateway");
        assert_eq!(line("batches"), "batches 8 f.toml");
        assert_eq!(line("poll-seconds"), "poll-seconds 3 default");
        assert_eq!(line("server"), "server nats://q f.toml");
    }

    #[test]
    fn the_former_file_is_read() {
        let former = "gateway = \"http://a\"\nkey_file = \"/k\"\nstop_seconds = 5\n\
                      [[server]]\ntype = \"nats\"\nurl = \"nats://q\"\ntoken_file = \"/t\"\n";
        let found = parse(Path::new("f.toml"), former).unwrap().unwrap();
        assert!(found.is_former);
        let config = read(former, &[("key-file", "/other")]).config().unwrap();
        assert_eq!((config.key_file, config.stop_seconds), (PathBuf::from("/other"), 5));
        assert_eq!(config.servers[0].token_file, Some(PathBuf::from("/t")));
    }

    #[test]
    fn a_file_without_settings_of_events_is_not_taken_for_one() {
        for others in ["", "[gateway]\nlisten = \"0.0.0.0:2\"\n", "data = \"/d\"\n"] {
            assert!(parse(Path::new("f.toml"), others).unwrap().is_none(), "{others}");
        }
        parse(Path::new("f.toml"), "events = 1\n").unwrap_err();
        let error = find(&["/nonexistent/a.toml".into()]).unwrap_err();
        assert!(error.to_string().contains("[events]"), "{error}");
    }
}

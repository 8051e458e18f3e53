//! The settings file, `rekindle.toml`: what an option is where neither the command line nor its variable says it.
//!
//! Its keys are long names of options. A key at the top holds for every command below that has the option. One in a
//! table named after a role holds for that role. `fn up` runs every role, so it reads every table; its own wins.
//!
//! What the file says is put into the command line before that is read. So values are checked, and errors worded, in
//! one place.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::{Arg, ArgAction, Command};
use rekindle_wire::{Namespace, settings_file};
use toml::{Table, Value};

#[cfg(test)]
mod tests;

/// Commands that run roles; tables of the file are named after them.
pub(crate) const ROLES: [&str; 4] = ["up", "gateway", "scheduler", "worker"];
/// Tables of other programs, which check them.
const OF_OTHERS: [&str; 1] = ["events"];
/// Other commands that work on a host's platform: keys at the top hold for them, and those of `[up]` that say where the
/// platform is.
const TOOLS: [&str; 15] = [
    "down",
    "backup",
    "restore-backup",
    "runtimes",
    "runtimes list",
    "runtimes add",
    "runtimes import",
    "doctor",
    "cluster init",
    "cluster token",
    "snapshot list",
    "snapshot inspect",
    "snapshot export",
    "snapshot import",
    "snapshot delete",
];
/// Tools that must work whatever the file says: an error in it is a warning.
const LENIENT: [&str; 2] = ["down", "doctor"];
/// Options that say where a platform is. `fn up` takes them from its own table alone, and so do tools.
const PLACES: [&str; 3] = ["data", "cache", "run"];
/// Options that say which file to read, or only make sense on a command line.
const NOT_IN_FILES: [&str; 15] = [
    "config",
    "help",
    NAMESPACE,
    "url",
    "key",
    "ca",
    "client-cert",
    "client-key",
    "foreground",
    "detached",
    "overwrite",
    "json",
    "quick",
    "criu-only",
    "wait",
];
/// The one key that is for clients.
const NAMESPACE: &str = "namespace";
/// How alike a mistyped key and an option must be to be suggested, of 1.
const ALIKE: f64 = 0.8;

#[derive(Debug)]
pub(crate) struct Settings {
    path: PathBuf,
    table: Table,
}

/// A setting in the file: `[worker] memory`, or `memory` at the top.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setting {
    /// The table, if it is in one.
    pub(crate) table: Option<&'static str>,
    /// As the command line would have it; nothing where it turns a flag off.
    pub(crate) words: Vec<String>,
    /// For people.
    pub(crate) shown: String,
    /// Whether it must not be shown after all.
    pub(crate) is_secret: bool,
}

/// A command line with what the file says put into it.
#[derive(Debug)]
pub(crate) struct CompletedCommandLine {
    pub(crate) words: Vec<OsString>,
    /// The file and the options that came from it, if any did.
    pub(crate) from: Option<(PathBuf, Vec<String>)>,
    /// Values that must not be shown.
    pub(crate) secrets: Vec<String>,
}

impl CompletedCommandLine {
    fn unchanged(words: Vec<OsString>) -> Self {
        let (from, secrets) = (None, Vec::new());
        Self { words, from, secrets }
    }
}

/// A message without these secrets.
pub(crate) fn redacted<'a>(message: String, secrets: impl Iterator<Item = &'a String>) -> String {
    secrets.fold(message, |message, secret| message.replace(secret, "(hidden)"))
}

/// Puts what the settings file says behind the command, where the command is one that reads it.
///
/// # Errors
/// When a file that is named cannot be read, or one says what no option is.
pub(crate) fn complete(root: &Command, words: Vec<OsString>) -> Result<CompletedCommandLine> {
    let Some((name, at)) = subcommand(root, &words) else {
        return Ok(CompletedCommandLine::unchanged(words));
    };
    let is_asked_for_help = words.iter().any(|word| word == "--help" || word == "-h");
    let reads = ROLES.iter().chain(&TOOLS).any(|command| *command == name);
    if !reads || is_asked_for_help {
        return Ok(CompletedCommandLine::unchanged(words));
    }
    let read = || -> Result<_> {
        let Some(settings) = Settings::find(named_file(&words))? else {
            return Ok(None);
        };
        let said = settings.of(root, &name)?;
        Ok(Some((settings, said)))
    };
    let (settings, said) = match read() {
        Ok(Some(read)) => read,
        Ok(None) => return Ok(CompletedCommandLine::unchanged(words)),
        Err(error) if LENIENT.contains(&name.as_str()) => {
            eprintln!("warning: settings are left out: {error:#}");
            return Ok(CompletedCommandLine::unchanged(words));
        }
        Err(error) => return Err(error),
    };
    let command = descend(root, &name).context("a command that was just found")?;
    let is_given = |arg: &Arg| {
        let long = format!("--{}", arg.get_long().unwrap_or_default());
        let is_it = |word: &OsString| {
            let word = word.to_string_lossy();
            word == long || word.strip_prefix(&long).is_some_and(|rest| rest.starts_with('='))
        };
        words[at..].iter().take_while(|word| *word != "--").any(is_it) || env_value(arg).is_some()
    };
    let (mut added, mut names, mut secrets) = (Vec::new(), Vec::new(), Vec::new());
    for (long, setting) in said {
        let arg = option(&[command], &long).context("an option that was just found")?;
        // What is given wins, also over what it does not go with.
        if is_given(arg) || command.get_arg_conflicts_with(arg).into_iter().any(is_given) {
            continue;
        }
        secrets.extend(setting.is_secret.then_some(setting.shown));
        names.push(format!("--{long}"));
        added.extend(setting.words.into_iter().map(OsString::from));
    }
    let mut completed = words;
    let behind = completed.split_off(at);
    completed.extend(added);
    completed.extend(behind);
    Ok(CompletedCommandLine {
        words: completed,
        from: Some((settings.path, names)),
        secrets,
    })
}

impl Settings {
    /// The file of this name, or the default one if there is one.
    ///
    /// # Errors
    /// When it cannot be read, or is not TOML.
    pub(crate) fn find(named: Option<PathBuf>) -> Result<Option<Self>> {
        let path = named.clone().unwrap_or_else(|| PathBuf::from(settings_file::PATH));
        match std::fs::read_to_string(&path) {
            Ok(text) => Self::parse(path, &text).map(Some),
            Err(e) if named.is_none() && e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e).with_context(|| format!("the settings file {} cannot be read", path.display())),
        }
    }

    fn parse(path: PathBuf, text: &str) -> Result<Self> {
        let table = settings_file::parse(&path, text)?;
        Ok(Self { path, table })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What it says for a command, by option. All of the file is checked, whatever the command.
    ///
    /// # Errors
    /// A key that no option has, or a value of a kind that its option does not take.
    pub(crate) fn of(&self, root: &Command, name: &str) -> Result<BTreeMap<String, Setting>> {
        let mut found = BTreeMap::new();
        let everywhere = ROLES.iter().chain(&TOOLS).filter_map(|name| descend(root, name));
        let everywhere: Vec<_> = everywhere.collect();
        let wanted = descend(root, name);
        for (key, value) in &self.table {
            if value.is_table() {
                self.role(key)?;
                continue;
            }
            if key == NAMESPACE {
                continue;
            }
            let setting = self.read(None, key, value, &everywhere)?;
            if option(wanted.as_slice(), key).is_some() {
                found.insert(key.clone(), setting);
            }
        }
        // A later table wins: a role's own is its last, and that of `fn up` is its.
        for role in ROLES.iter().rev() {
            let Some(Value::Table(table)) = self.table.get(*role) else {
                continue;
            };
            let command = descend(root, role);
            for (key, value) in table {
                let setting = self.read(Some(role), key, value, command.as_slice())?;
                let is_for_it = match (*role, name) {
                    (role, name) if role == name => true,
                    // Each role listens somewhere; `fn up` tells the gateway's address alone.
                    (role, "up") => !PLACES.contains(&key.as_str()) && (role == "gateway" || key != "listen"),
                    ("up", name) => TOOLS.contains(&name) && PLACES.contains(&key.as_str()),
                    _ => false,
                };
                if is_for_it && option(wanted.as_slice(), key).is_some() {
                    found.insert(key.clone(), setting);
                }
            }
        }
        Ok(found)
    }

    fn namespace(&self) -> Result<Namespace> {
        let Some(value) = self.table.get(NAMESPACE) else {
            return Ok(Namespace::default());
        };
        let text = text(value).unwrap_or_default();
        text.parse()
            .with_context(|| format!("{}: {NAMESPACE}", self.path.display()))
    }

    fn role(&self, key: &str) -> Result<()> {
        let tables = [ROLES.as_slice(), &OF_OTHERS].concat();
        if !tables.contains(&key) {
            bail!(
                "{}: there is no role [{key}]: tables are {}",
                self.path.display(),
                tables.join(", ")
            );
        }
        Ok(())
    }

    fn read(&self, table: Option<&'static str>, key: &str, value: &Value, commands: &[&Command]) -> Result<Setting> {
        let place = table.map_or_else(|| key.to_owned(), |table| format!("[{table}] {key}"));
        let path = self.path.display();
        let Some(arg) = option(commands, key) else {
            let of = table.unwrap_or("up");
            let near = commands
                .iter()
                .flat_map(|c| c.get_arguments())
                .filter_map(Arg::get_long);
            let near = near.max_by(|a, b| strsim::jaro(a, key).total_cmp(&strsim::jaro(b, key)));
            match near.filter(|near| strsim::jaro(near, key) >= ALIKE) {
                Some(near) => bail!("{path}: {place} is no option: did you mean {near}?"),
                None => bail!("{path}: {place} is no option: `fn {of} --help` lists them"),
            }
        };
        let long = arg.get_long().unwrap_or_default();
        let is_list = matches!(arg.get_action(), ArgAction::Append);
        let is_flag = matches!(arg.get_action(), ArgAction::SetTrue);
        // `--traces` may stand alone.
        let may_be_bare = arg
            .get_num_args()
            .is_some_and(|n| n.min_values() == 0 && n.max_values() > 0);
        let (words, shown) = match value {
            Value::Boolean(on) if is_flag || may_be_bare => {
                (on.then(|| format!("--{long}")).into_iter().collect(), on.to_string())
            }
            _ if is_flag => bail!("{path}: {place} is true or false"),
            Value::Array(values) if values.is_empty() => bail!("{path}: {place} is an empty list: leave it out"),
            Value::Array(values) if is_list => {
                let values = values.iter().map(text).collect::<Option<Vec<_>>>();
                let values = values.with_context(|| format!("{path}: {place} is a list of texts or numbers"))?;
                let words = values.iter().map(|value| format!("--{long}={value}"));
                (words.collect(), values.join(","))
            }
            value => {
                let value = text(value).with_context(|| match is_list {
                    true => format!("{path}: {place} takes text, a number or a list of them"),
                    false => format!("{path}: {place} takes one text or number"),
                })?;
                (vec![format!("--{long}={value}")], value)
            }
        };
        Ok(Setting {
            table,
            words,
            shown,
            is_secret: arg.is_hide_env_values_set(),
        })
    }
}

/// A value as a word of the command line.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Boolean(_) | Value::Datetime(_) | Value::Array(_) | Value::Table(_) => None,
    }
}

/// The option of this name that files may set, in the first of the commands that has it.
fn option<'a>(commands: &[&'a Command], key: &str) -> Option<&'a Arg> {
    let mut args = commands.iter().flat_map(|command| command.get_arguments());
    args.find(|arg| arg.get_long() == Some(key))
        .filter(|arg| is_setting(arg))
}

/// Whether files may set it.
pub(crate) fn is_setting(arg: &Arg) -> bool {
    arg.get_long().is_some_and(|long| !NOT_IN_FILES.contains(&long)) && !arg.is_hide_set()
}

/// What its variable says.
pub(crate) fn env_value(arg: &Arg) -> Option<OsString> {
    arg.get_env().and_then(std::env::var_os)
}

/// The subcommand of this name, `runtimes import` for one within another.
pub(crate) fn descend<'a>(root: &'a Command, name: &str) -> Option<&'a Command> {
    name.split(' ')
        .try_fold(root, |command, word| command.find_subcommand(word))
}

/// The subcommand of a command line, and the place behind it.
fn subcommand(root: &Command, words: &[OsString]) -> Option<(String, usize)> {
    let (mut command, mut path, mut behind) = (root, Vec::new(), 0);
    let mut words = words.iter().enumerate().skip(1);
    while let Some((at, word)) = words.next() {
        let word = word.to_string_lossy();
        if let Some(long) = word.strip_prefix("--") {
            let takes_value = |arg: &Arg| arg.get_long() == Some(long) && arg.get_action().takes_values();
            if root.get_arguments().any(takes_value) {
                words.next();
            }
            continue;
        }
        let Some(next) = command.find_subcommand(word.as_ref()) else {
            break;
        };
        (command, behind) = (next, at + 1);
        path.push(next.get_name().to_owned());
    }
    (!path.is_empty()).then(|| (path.join(" "), behind))
}

/// The directory of the platform's data, where the settings file of this host names one.
pub(crate) fn data_dir() -> Option<PathBuf> {
    let settings = Settings::find(named_here()).ok().flatten()?;
    let own = settings
        .table
        .get("up")
        .and_then(Value::as_table)
        .and_then(|up| up.get("data"));
    own.or_else(|| settings.table.get("data"))?.as_str().map(PathBuf::from)
}

/// Namespace of functions that are named without one, where the settings file says so.
///
/// # Errors
/// When a file that is named cannot be read, or what it says is no namespace.
pub(crate) fn namespace() -> Result<Namespace> {
    let named = named_here();
    let settings = match Settings::find(named.clone()) {
        Err(error) if named.is_some() => return Err(error),
        // Whoever calls a gateway need not be able to read the host's file.
        found => found.ok().flatten(),
    };
    settings.map_or_else(|| Ok(Namespace::default()), |settings| settings.namespace())
}

/// The file that this process was told to read.
fn named_here() -> Option<PathBuf> {
    named_file(&std::env::args_os().collect::<Vec<_>>())
}

/// The file that the command line or `FN_CONFIG` names.
pub(crate) fn named_file(words: &[OsString]) -> Option<PathBuf> {
    let mut words = words.iter().take_while(|word| *word != "--");
    while let Some(word) = words.next() {
        if word == "--config" {
            return words.next().map(PathBuf::from);
        }
        if let Some(path) = word.to_string_lossy().strip_prefix("--config=") {
            return Some(PathBuf::from(path));
        }
    }
    std::env::var_os("FN_CONFIG")
        .filter(|path| !path.is_empty())
        .map(PathBuf::from)
}

//! `fn config`.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Arg, CommandFactory as _, Parser as _};
use rekindle_wire::settings_file;
use serde::Serialize;

use crate::args::{Cli, ConfigArgs};
use crate::settings::{self, Setting, Settings};
use crate::show;

/// An option of a role, as it is in force.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct EffectiveOption {
    option: String,
    /// `None` where it is not set and has no default.
    value: Option<String>,
    from: String,
}

/// Prints what a role would run with.
pub(crate) fn run(args: &ConfigArgs) -> Result<ExitCode> {
    let mut root = Cli::command();
    root.build();
    let settings = Settings::find(settings::named_file(&std::env::args_os().collect::<Vec<_>>()))?;
    let role = settings::descend(&root, &args.role).context("a role is a command")?;
    let said = match &settings {
        Some(settings) => settings.of(&root, &args.role)?,
        None => BTreeMap::new(),
    };
    check(role, &said)?;
    let path = settings.as_ref().map(|settings| settings.path().display().to_string());
    let options = role.get_arguments().filter(|arg| settings::is_setting(arg));
    let mut options: Vec<_> = options
        .map(|arg| in_force(arg, &said, path.as_deref().unwrap_or_default()))
        .filter(|option| !args.changed || option.from != DEFAULT)
        .collect();
    options.sort_by(|a, b| a.option.cmp(&b.option));
    if args.json {
        show::print_json(&options)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = show::table(["OPTION", "VALUE", "FROM"]);
    for option in &options {
        let value = option.value.as_deref().unwrap_or("-");
        table.add_row([option.option.as_str(), value, option.from.as_str()]);
    }
    show::print_table(&table);
    if path.is_none() {
        say!("\nno settings file: {} is read where it is there", settings_file::PATH);
    }
    Ok(ExitCode::SUCCESS)
}

const DEFAULT: &str = "default";

/// Where an option's value comes from: its variable, the file, or nowhere.
fn in_force(arg: &Arg, said: &BTreeMap<String, Setting>, path: &str) -> EffectiveOption {
    let long = arg.get_long().unwrap_or_default();
    let (value, from) = if let Some(value) = settings::env_value(arg) {
        let name = arg.get_env().unwrap_or_default().to_string_lossy();
        (Some(value.to_string_lossy().into_owned()), format!("${name}"))
    } else if let Some(setting) = said.get(long) {
        let place = setting.table.map_or_else(String::new, |table| format!(" [{table}]"));
        (Some(setting.shown.clone()), format!("{path}{place}"))
    } else {
        let defaults = arg.get_default_values().iter().map(|v| v.to_string_lossy());
        let value = defaults.collect::<Vec<_>>().join(", ");
        (Some(value).filter(|v| !v.is_empty()), DEFAULT.to_owned())
    };
    let is_secret = arg.is_hide_env_values_set() && from != DEFAULT;
    EffectiveOption {
        option: long.to_owned(),
        value: value.map(|value| if is_secret { "(hidden)".to_owned() } else { value }),
        from,
    }
}

/// Lets the command line's own parser look at the values.
fn check(role: &clap::Command, said: &BTreeMap<String, Setting>) -> Result<()> {
    let words = said.values().flat_map(|setting| setting.words.iter().cloned());
    let words = ["fn".to_owned(), role.get_name().to_owned()].into_iter().chain(words);
    let Err(error) = Cli::try_parse_from(words) else {
        return Ok(());
    };
    let secrets = said.values().filter(|setting| setting.is_secret);
    let message = settings::redacted(error.render().to_string(), secrets.map(|setting| &setting.shown));
    Err(anyhow::anyhow!("{}", message.trim_end())).context("the settings file")
}

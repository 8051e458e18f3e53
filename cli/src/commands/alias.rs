//! `fn alias`.

use std::process::ExitCode;

use anyhow::Result;
use rekindle_wire::FunctionId;
use rekindle_wire::api::Alias;

use super::versions::percent;
use crate::args::AliasCommand;
use crate::client::Client;
use crate::show;

/// Sets, lists or removes aliases.
pub(crate) async fn run(client: &Client, command: &AliasCommand) -> Result<ExitCode> {
    match command {
        AliasCommand::Set { name, alias, versions } => {
            let name = client.function_id(name);
            let set = client.set_alias(&name, alias, versions.clone()).await?;
            say!("{name} {}: {}", set.name, shares(&set));
            say!("  url       {}", address(client, &name, &set));
        }
        AliasCommand::List { name, listing } => {
            let name = client.function_id(name);
            let aliases = client.aliases(&name).await?;
            if listing.json {
                show::print_json(&aliases)?;
                return Ok(ExitCode::SUCCESS);
            }
            let mut table = show::table(["ALIAS", "VERSIONS", "URL"]);
            for alias in &aliases {
                let name = address(client, &name, alias);
                table.add_row([alias.name.to_string(), shares(alias), name]);
            }
            show::print_table(&table);
        }
        AliasCommand::Rm { name, alias } => {
            let name = client.function_id(name);
            client.remove_alias(&name, alias).await?;
            say!("{name} has no alias {alias} any more");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// An alias's versions, each with its share if there are several.
fn shares(alias: &Alias) -> String {
    let one = |version| match alias.targets.len() {
        1 => format!("version {version}"),
        _ => format!("{} to version {version}", percent(alias.percent(version))),
    };
    let all: Vec<String> = alias.targets.iter().map(|target| one(target.version)).collect();
    all.join(", ")
}

fn address(client: &Client, function: &FunctionId, alias: &Alias) -> String {
    let path = match alias.name.is_live() {
        true => format!("/function/{function}"),
        false => format!("/function/{function}@{}", alias.name),
    };
    client.address(&path)
}

#[cfg(test)]
mod tests {
    use rekindle_wire::VersionNumber;
    use rekindle_wire::api::AliasTarget;

    use super::*;

    #[test]
    fn shares_are_shown_in_percent_of_all_weights() {
        let mut alias = Alias::of("live".parse().unwrap(), VersionNumber(7));
        assert_eq!(shares(&alias), "version 7");
        alias.targets = [(7, 3), (8, 1)]
            .map(|(version, weight)| AliasTarget {
                version: VersionNumber(version),
                weight,
            })
            .into();
        assert_eq!(shares(&alias), "75% to version 7, 25% to version 8");
    }
}

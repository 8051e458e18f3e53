//! `fn namespace`.

use std::process::ExitCode;

use anyhow::Result;

use crate::args::NamespaceCommand;
use crate::client::Client;
use crate::show;

/// Makes, lists or removes namespaces.
pub(crate) async fn run(client: &Client, command: &NamespaceCommand) -> Result<ExitCode> {
    match command {
        NamespaceCommand::Create { name } => {
            client.create_namespace(name).await?;
            say!("the namespace {name} is there: fn -n {name} deploy");
        }
        NamespaceCommand::List(listing) => {
            let all = client.namespaces().await?;
            if listing.json {
                show::print_json(&all)?;
                return Ok(ExitCode::SUCCESS);
            }
            let mut table = show::table(["NAMESPACE", "FUNCTIONS"]);
            for namespace in all {
                table.add_row([namespace.name.to_string(), namespace.functions.to_string()]);
            }
            show::print_table(&table);
        }
        NamespaceCommand::Rm { name } => {
            client.remove_namespace(name).await?;
            say!("the namespace {name} is removed");
        }
    }
    Ok(ExitCode::SUCCESS)
}

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
            let mut table = show::table(["NAMESPACE", "FUNCTIONS", "SNAPSHOTS"]);
            for namespace in all {
                let snapshots = if namespace.encrypted { "encrypted" } else { "" };
                let functions = namespace.functions.to_string();
                table.add_row([namespace.name.as_str(), functions.as_str(), snapshots]);
            }
            show::print_table(&table);
        }
        NamespaceCommand::Encrypt { name } => {
            client.encrypt_namespace(name).await?;
            say!(
                "snapshots of the namespace {name} are encrypted from now on; those that there are when they are \
                 renewed: fn -n {name} snapshot renew FUNCTION"
            );
        }
        NamespaceCommand::Rm { name } => {
            client.remove_namespace(name).await?;
            say!("the namespace {name} is removed");
        }
    }
    Ok(ExitCode::SUCCESS)
}

//! `fn snapshot renew`.

use std::process::ExitCode;

use anyhow::Result;

use crate::args::FunctionArg;
use crate::client::Client;
use crate::show;

/// Renews the snapshot of a function's live version.
pub(super) async fn run(client: &Client, name: &FunctionArg, json: bool) -> Result<ExitCode> {
    let name = client.function_id(name);
    let version = client.renew_snapshot(&name).await?;
    if json {
        show::print_json(&version)?;
    } else {
        say!(
            "the snapshot of {name} version {} is made anew: `fn describe {name}` shows how far it is",
            version.version
        );
    }
    Ok(ExitCode::SUCCESS)
}

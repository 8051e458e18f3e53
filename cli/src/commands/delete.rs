//! `fn delete`.

use std::io::{self, BufRead as _, IsTerminal as _};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};

use crate::args::DeleteArgs;
use crate::client::Client;
use crate::out;

/// Removes a function, after asking.
pub(crate) async fn run(client: &Client, args: &DeleteArgs) -> Result<ExitCode> {
    let name = &client.function_id(&args.name);
    if !args.yes {
        // No question about a function that does not exist.
        client.function(name).await?;
        if !io::stdin().is_terminal() {
            bail!("{name} would be removed with all its versions and snapshots: say --yes");
        }
        out::text(&format!("remove {name} with all its versions and snapshots? [y/N] "));
        let mut answer = String::new();
        io::stdin()
            .lock()
            .read_line(&mut answer)
            .context("standard input cannot be read")?;
        if !matches!(answer.trim(), "y" | "Y" | "yes") {
            say!("kept");
            return Ok(ExitCode::FAILURE);
        }
    }
    client.delete(name).await?;
    say!("{name} is removed");
    Ok(ExitCode::SUCCESS)
}

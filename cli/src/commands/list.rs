//! `fn list`.

use std::process::ExitCode;

use anyhow::Result;

use crate::args::Listing;
use crate::client::Client;
use crate::show;

/// Prints every function.
pub(crate) async fn run(client: &Client, args: Listing) -> Result<ExitCode> {
    let functions = client.functions().await?;
    if args.json {
        show::print_json(&functions)?;
        return Ok(ExitCode::SUCCESS);
    }
    if functions.is_empty() {
        say!("no functions yet: make one with `fn init greet`, then `fn deploy greet`");
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = show::table(["NAME", "LIVE", "NEWEST", "RUNTIME", "MEMORY", "INSTANCES", "URL"]);
    for f in functions {
        table.add_row([
            f.name.to_string(),
            f.live.map_or_else(|| "-".to_owned(), |v| v.to_string()),
            format!("{} {}", f.newest, f.state),
            show::runtime(f.runtime, f.base, f.image.as_deref()),
            show::bytes(f.memory_bytes),
            f.instances.to_string(),
            client.address(&f.path),
        ]);
    }
    show::print_table(&table);
    Ok(ExitCode::SUCCESS)
}

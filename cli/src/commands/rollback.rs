//! `fn rollback`.

use std::process::ExitCode;

use anyhow::Result;
use rekindle_wire::api::AliasTarget;

use crate::args::RollbackArgs;
use crate::client::Client;
use crate::show::{self, Tone};

/// Has an earlier version serve again.
pub(crate) async fn run(client: &Client, args: &RollbackArgs) -> Result<ExitCode> {
    let name = client.function_id(&args.name);
    let done = client.roll_back(&name, args.version).await?;
    if args.json {
        show::print_json(&done)?;
        return Ok(ExitCode::SUCCESS);
    }
    let before: Vec<String> = done
        .from
        .iter()
        .map(|AliasTarget { version, .. }| version.to_string())
        .collect();
    let live = show::tinted("live", Tone::Good);
    match before.is_empty() {
        true => say!("{name} version {} is {live}", done.to),
        false => say!(
            "{name} version {} is {live} again, in place of {}",
            done.to,
            before.join(" and ")
        ),
    }
    if !done.restored {
        say!("  snapshot  {} each start boots", show::tinted("none:", Tone::Warning));
    }
    Ok(ExitCode::SUCCESS)
}

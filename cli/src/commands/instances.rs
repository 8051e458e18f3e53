//! `fn instances`.

use std::process::ExitCode;

use anyhow::Result;

use crate::args::Listing;
use crate::client::Client;
use crate::show;

pub(crate) async fn run(client: &Client, args: Listing) -> Result<ExitCode> {
    let instances = client.instances().await?;
    if args.json {
        show::print_json(&instances)?;
    } else if instances.is_empty() {
        say!("no instances: every function is at zero until it is called");
    } else {
        super::print_instances(&instances);
    }
    Ok(ExitCode::SUCCESS)
}

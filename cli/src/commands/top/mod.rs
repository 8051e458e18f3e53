//! `fn top`: the platform live in the terminal. It polls the admin API and shows what changed; off a terminal it shows
//! one frame and ends.

mod board;
mod live;
mod screen;
mod view;

use std::io::{self, IsTerminal as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;

use crate::args::TopArgs;
use crate::client::Client;
use crate::show;
use view::View;

/// Interval between the two readings of a single frame. Gateways report counts once a second.
const ONCE: Duration = Duration::from_secs(2);

/// Shows the platform until the user ends it.
pub(crate) async fn run(client: &Client, args: &TopArgs) -> Result<ExitCode> {
    let is_watched = io::stdout().is_terminal() && io::stdin().is_terminal();
    if args.once || args.json || !is_watched {
        let before = client.stats().await?;
        tokio::time::sleep(ONCE).await;
        let view = View::between(&before, &client.stats().await?);
        if args.json {
            show::print_json(&view)?;
        } else {
            screen::lines(&view).iter().for_each(|line| say!("{line}"));
        }
        return Ok(ExitCode::SUCCESS);
    }
    live::run(client, Duration::from_secs(args.every)).await?;
    Ok(ExitCode::SUCCESS)
}

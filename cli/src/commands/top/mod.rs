//! `fn top`: the platform live in the terminal. It asks the admin API once in a while and shows what changed; off a terminal it shows one
//! frame and ends.

mod screen;
mod view;

use std::collections::VecDeque;
use std::io::{self, IsTerminal as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::args::TopArgs;
use crate::client::Client;
use crate::out;
use crate::show;
use view::View;

/// How far apart the two readings of a single frame are. Gateways tell what they count once a second.
const ONCE: Duration = Duration::from_secs(2);
/// Readings that rates are made of.
const READINGS: usize = 10;
/// To the terminal's first place.
const HOME: &str = "\x1b[H";
/// Clears what is left of a line, and goes to the next.
const REST_OF_LINE: &str = "\x1b[K\r\n";
/// Clears all below.
const BELOW: &str = "\x1b[J";

/// Shows it until somebody has seen enough.
pub(crate) async fn run(client: &Client, args: &TopArgs) -> Result<ExitCode> {
    if args.once || args.json || !io::stdout().is_terminal() {
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
    show_live(client, Duration::from_secs(args.every)).await?;
    Ok(ExitCode::SUCCESS)
}

/// One frame over the other, until the command is interrupted.
async fn show_live(client: &Client, every: Duration) -> Result<()> {
    let mut readings = VecDeque::new();
    loop {
        readings.push_back(client.stats().await?);
        if readings.len() > READINGS {
            readings.pop_front();
        }
        if let (Some(before), Some(after)) = (readings.front(), readings.back()) {
            draw(&View::between(before, after));
        }
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            interrupted = tokio::signal::ctrl_c() => return interrupted.context("SIGINT cannot be caught"),
        }
    }
}

/// Over the last frame, in one write, so that nothing flickers: each line to its end, and whatever is below.
fn draw(view: &View) {
    let mut frame = HOME.to_owned();
    for line in screen::lines(view) {
        frame.push_str(&line);
        frame.push_str(REST_OF_LINE);
    }
    frame.push_str(BELOW);
    out::text(&frame);
}

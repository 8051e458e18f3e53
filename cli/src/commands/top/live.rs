//! Shows one reading after the other on a terminal until the user ends it. A platform that does not answer is asked
//! again: the last view stays, with the reason.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context as _, Result};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use rekindle_wire::stats::Stats;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::board::{Board, LoopAction};
use super::view::View;
use crate::client::Client;

/// Number of readings from which rates are computed.
const READINGS: usize = 10;
/// How often the thread that waits for keys checks whether it is still needed.
const KEYS: Duration = Duration::from_millis(100);
/// Maximum number of unprocessed keys.
const KEYS_MOST: usize = 64;

/// Shows the platform until `q`, Escape or ^C.
pub(super) async fn run(client: &Client, every: Duration) -> Result<()> {
    // An error at the start (no platform, no key) is reported as by any command.
    let first = client.stats().await?;
    let terminal = ratatui::try_init();
    let terminal = terminal.context("the terminal cannot be drawn on; `fn top --once` prints one frame");
    let shown = match terminal {
        Ok(mut terminal) => show(&mut terminal, client, every, first).await,
        Err(error) => Err(error),
    };
    // Also if only part of its initialization succeeded. If the terminal is gone there is nothing to restore.
    drop(ratatui::try_restore());
    shown
}

async fn show(terminal: &mut DefaultTerminal, client: &Client, every: Duration, first: Stats) -> Result<()> {
    let mut events = events();
    let caught = |kind| signal(kind).context("signals cannot be caught");
    let (mut ended, mut hung_up) = (caught(SignalKind::terminate())?, caught(SignalKind::hangup())?);
    let mut interrupted = caught(SignalKind::interrupt())?;
    let mut board = Board::new(every);
    board.view = View::between(&first, &first);
    let mut readings = VecDeque::from([first]);
    let read_after = |pause| {
        Box::pin(async move {
            tokio::time::sleep(pause).await;
            client.stats().await
        })
    };
    // Gateways report counts once a second: an earlier reading would compute a rate over almost no time.
    let mut reading = read_after(every);
    loop {
        terminal
            .draw(|frame| board.draw(frame))
            .context("the terminal is gone")?;
        tokio::select! {
            event = events.recv() => match event {
                Some(Event::Key(key)) if key.kind != KeyEventKind::Release => {
                    if board.on_key(key) == LoopAction::End {
                        return Ok(());
                    }
                }
                // A resize redraws.
                Some(_) => {}
                None => return Ok(()),
            },
            read = &mut reading => {
                match read {
                    Ok(stats) => {
                        board.note(readings.back(), &stats);
                        readings.push_back(stats);
                        if readings.len() > READINGS {
                            readings.pop_front();
                        }
                        if let (Some(before), Some(after)) = (readings.front(), readings.back()) {
                            board.view = View::between(before, after);
                        }
                    }
                    Err(error) => board.error = Some(format!("{error:#}")),
                }
                reading = read_after(every);
            }
            _ = ended.recv() => return Ok(()),
            _ = hung_up.recv() => return Ok(()),
            _ = interrupted.recv() => return Ok(()),
        }
    }
}

/// Keys and resizes, read by a thread of their own, since waiting for the terminal blocks. It ends when the receiver is
/// dropped.
fn events() -> mpsc::Receiver<Event> {
    let (sender, events) = mpsc::channel(KEYS_MOST);
    std::thread::spawn(move || {
        while !sender.is_closed() {
            match event::poll(KEYS) {
                Ok(false) => {}
                Ok(true) => match event::read() {
                    Ok(event) => {
                        if sender.blocking_send(event).is_err() {
                            return;
                        }
                    }
                    Err(_) => return,
                },
                Err(_) => return,
            }
        }
    });
    events
}

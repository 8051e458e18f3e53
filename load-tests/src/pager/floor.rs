//! The least possible time: a word to another thread that sleeps, and its answer, through pipes. A fault served by a
//! thread is that, and the filling.

use std::io::{Read as _, Write as _, pipe};
use std::time::Instant;

use anyhow::{Context as _, Result};

/// Exchanges in a measurement.
const EXCHANGES: usize = 2_000;

/// Microseconds of each.
pub(super) fn measure() -> Result<Vec<f64>> {
    let (mut asked, mut asking) = pipe().context("no pipe")?;
    let (mut answered, mut answering) = pipe().context("no pipe")?;
    let other = std::thread::spawn(move || {
        let mut word = [0];
        while asked.read_exact(&mut word).is_ok() && answering.write_all(&word).is_ok() {}
    });
    let mut word = [0];
    let mut took = Vec::with_capacity(EXCHANGES);
    for _ in 0..EXCHANGES {
        let started = Instant::now();
        asking.write_all(&word)?;
        answered.read_exact(&mut word)?;
        took.push(started.elapsed().as_secs_f64() * 1e6);
    }
    drop(asking);
    // It ends when the pipe is closed.
    drop(other.join());
    Ok(took)
}

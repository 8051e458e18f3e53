//! How long each phase of a preparation takes.

use std::time::Instant;

use rekindle_wire::api::{PhaseTime, VersionState};

/// Duration of each phase.
#[derive(Default)]
pub(super) struct Phases {
    pub(super) times: Vec<PhaseTime>,
    now: Option<(VersionState, Instant)>,
}

impl Phases {
    pub(super) fn enter(&mut self, phase: VersionState) {
        self.leave();
        self.now = Some((phase, Instant::now()));
    }

    fn leave(&mut self) {
        if let Some((phase, since)) = self.now.take() {
            let ms = since.elapsed().as_secs_f64() * 1_000.0;
            self.times.push(PhaseTime { phase, ms });
        }
    }

    pub(super) fn ended(mut self) -> Vec<PhaseTime> {
        self.leave();
        self.times
    }
}

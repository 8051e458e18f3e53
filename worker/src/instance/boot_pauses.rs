//! Pauses between the boots of a version whose boots fail. Each boot takes its turn from others, so one that fails each
//! time is tried less and less often.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rekindle_wire::internal::VersionSpec;
use rekindle_wire::{ApiError, ErrorCode, FunctionId, VersionNumber};

/// The pause after the second failure in a row. Each further one doubles it.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);
/// How long a failure is remembered.
const REMEMBERED: Duration = Duration::from_secs(300);

/// The versions whose last boot failed.
#[derive(Debug, Default)]
pub struct BootPauses(Mutex<HashMap<(FunctionId, VersionNumber), Failures>>);

#[derive(Debug)]
struct Failures {
    /// How many boots failed, each of which began after the one before had failed.
    count: u32,
    last: Instant,
    message: String,
}

impl Failures {
    fn until(&self) -> Instant {
        let doubled = self.count.checked_sub(2).map_or(0, |more| 1 << more.min(10));
        self.last + (FIRST * doubled).min(LONGEST)
    }
}

impl BootPauses {
    /// Returns `boot_failed` while this version has a pause.
    ///
    /// # Errors
    /// The message has the last boot's.
    pub fn admit(&self, spec: &VersionSpec, now: Instant) -> Result<(), ApiError> {
        let all = self.0.lock();
        let Some(failures) = all.get(&key(spec)).filter(|failures| now < failures.until()) else {
            return Ok(());
        };
        let seconds = (failures.until() - now).as_secs_f64();
        let message = format!(
            "version {} failed to boot {} times in a row, so it is booted again in {seconds:.1} s at the earliest; the \
             last time: {}",
            spec.version, failures.count, failures.message
        );
        Err(ApiError::new(ErrorCode::BootFailed, message))
    }

    /// Records how a boot ended that began at `began`.
    pub fn note<T>(&self, spec: &VersionSpec, began: Instant, now: Instant, booted: &Result<T, ApiError>) {
        let mut all = self.0.lock();
        all.retain(|_, failures| now < failures.last + REMEMBERED);
        match booted {
            Ok(_) => drop(all.remove(&key(spec))),
            Err(error) if error.code == ErrorCode::BootFailed => {
                let failures = all.entry(key(spec)).or_insert_with(|| Failures {
                    count: 0,
                    last: began,
                    message: String::new(),
                });
                // Boots that ran side by side failed for one reason.
                if began >= failures.last {
                    failures.count = failures.count.saturating_add(1);
                    failures.last = now;
                    failures.message.clone_from(&error.message);
                }
            }
            Err(_) => {}
        }
    }
}

fn key(spec: &VersionSpec) -> (FunctionId, VersionNumber) {
    (spec.function.clone(), spec.version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::spec;

    #[test]
    fn boots_that_fail_in_a_row_have_pauses_that_grow_and_one_that_succeeds_ends_them() {
        let (pauses, spec) = (BootPauses::default(), spec("runtime = \"http\"\ncommand = [\"serve\"]"));
        let failed = || Err::<(), _>(ApiError::new(ErrorCode::BootFailed, "main.py: no such file"));
        let mut now = Instant::now();
        let mut pause_ms = Vec::new();
        for _ in 0..9 {
            pauses.note(&spec, now, now, &failed());
            let mut pause = 0;
            while let Err(error) = pauses.admit(&spec, now) {
                assert!(error.message.contains("main.py: no such file"), "{}", error.message);
                now += Duration::from_millis(500);
                pause += 500;
            }
            pause_ms.push(pause);
        }
        assert_eq!(pause_ms, [0, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000]);
        pauses.note(&spec, now, now, &Ok(()));
        pauses.note(&spec, now, now, &failed());
        assert!(pauses.admit(&spec, now).is_ok());
    }

    #[test]
    fn boots_that_ran_side_by_side_fail_once_and_other_errors_do_not_count() {
        let (pauses, spec) = (BootPauses::default(), spec("runtime = \"http\"\ncommand = [\"serve\"]"));
        let (began, ended) = (Instant::now(), Instant::now() + Duration::from_secs(1));
        let failed = |code| Err::<(), _>(ApiError::new(code, "it did not work"));
        for _ in 0..80 {
            pauses.note(&spec, began, ended, &failed(ErrorCode::BootFailed));
            pauses.note(&spec, ended, ended, &failed(ErrorCode::Internal));
        }
        assert!(pauses.admit(&spec, ended).is_ok());
        pauses.note(&spec, ended, ended, &failed(ErrorCode::BootFailed));
        assert!(pauses.admit(&spec, ended).is_err());
    }
}

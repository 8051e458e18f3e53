//! The parts of an invocation, from `Server-Timing`. Those of one list do not overlap; what belongs to none is the
//! rest.

use crate::subject::{Sample, Subject};

/// What a part is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Floor {
    /// An exchange over loopback with a server that does nothing.
    Hop,
    /// An exchange with a new connection.
    NewConnection,
    /// The function asked directly.
    Direct,
    /// No time at all: the work of some lines of code.
    Nothing,
    /// Estimated: the least that was seen.
    Least,
}

impl Floor {
    /// Its name among the floors, where it is measured.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Hop => "kept connection",
            Self::NewConnection => "new connection",
            Self::Direct => "asked directly",
            Self::Nothing => "0",
            Self::Least => "the least seen",
        }
    }
}

/// A part: its name in `Server-Timing`, what it is, what bounds it, its floor.
pub(super) type Part = (&'static str, &'static str, &'static str, Floor);

/// The name of the rest.
pub(super) const REST: &str = "";

/// The parts of an invocation of this subject, with the rest at the end.
pub(super) fn of(subject: Subject) -> Vec<Part> {
    let route: Part = (
        "route",
        "gateway: until a slot is looked for",
        "its code",
        Floor::Nothing,
    );
    let rest = |floor| -> Part {
        (
            REST,
            "the rest: client, gateway and worker, and what is sent between",
            "wake-ups of threads on other cores, reading and writing HTTP",
            floor,
        )
    };
    match subject {
        Subject::Restored => vec![
            route,
            (
                "place",
                "scheduler: a placement, and the order to the worker",
                "its code, and the wake-ups of threads: the roles are one process here, and need no connection",
                Floor::Nothing,
            ),
            (
                "wait",
                "worker: until the instance is ready",
                "the restore, see below",
                Floor::Least,
            ),
            (
                "function",
                "the function's answer",
                "pages that it touches for the first time",
                Floor::Direct,
            ),
            rest(Floor::NewConnection),
        ],
        Subject::Parked => vec![
            route,
            ("place", "scheduler: a placement", "its code, as above", Floor::Nothing),
            (
                "thaw",
                "worker: the control group goes on",
                "one write to it, and the kernel waking each thread",
                Floor::Least,
            ),
            (
                "function",
                "the function's answer",
                "caches that are cold, pages that were given back",
                Floor::Direct,
            ),
            rest(Floor::NewConnection),
        ],
        _ => vec![
            route,
            ("place", "gateway: a slot of a lease", "its code", Floor::Nothing),
            (
                "function",
                "the function's answer, with the way to it",
                "its own work, and the wake-up of its thread",
                // Not the time of asking directly: that includes the client's wake-up, which is in the rest here.
                Floor::Least,
            ),
            rest(Floor::Hop),
        ],
    }
}

/// The parts of a restore, with the rest at the end. The restore begins while the placement is still in flight to the
/// gateway.
pub(super) const RESTORE: [Part; 5] = [
    (
        "sandbox",
        "one of the pool is furnished, its files mounted",
        "mount and pivot_root",
        Floor::Least,
    ),
    (
        "turn",
        "until it is its turn at the processors",
        "other starts",
        Floor::Nothing,
    ),
    (
        "restorer",
        "processes and mappings, the working set",
        "see below",
        Floor::Least,
    ),
    (
        "after-restore",
        "the hook, which reseeds",
        "Python: modules that it touches for the first time",
        Floor::Direct,
    ),
    (
        REST,
        "the rest: the snapshot opened, the answer's way back",
        "wake-ups",
        Floor::Nothing,
    ),
];

/// The phase of the whole restore.
pub(super) const WHOLE_RESTORE: &str = "restore";

/// The parts of the restorer's work, with the rest at the end.
pub(super) const RESTORER: [Part; 4] = [
    (
        "mappings",
        "from the order until the hollow process has mapped all that the pager registers",
        "some hundred system calls, wake-ups",
        Floor::Least,
    ),
    (
        "working-set",
        "memory registered, the first response's pages filled; files, descriptors and threads are made beside",
        "page tables, and a copy of each page that will be written",
        Floor::Least,
    ),
    (
        "resume",
        "what the hollow process has not made by then, random numbers, and the word to go on",
        "wake-ups",
        Floor::Least,
    ),
    (
        REST,
        "the rest: /tmp put back, pager started",
        "a thread",
        Floor::Nothing,
    ),
];

/// The phase of all of the restorer's work.
pub(super) const WHOLE_RESTORER: &str = "restorer";

/// The duration of each of these parts in a sample whose whole is `whole` milliseconds.
pub(super) fn split(sample: &Sample, whole: f64, parts: &[Part]) -> Vec<f64> {
    let told = |name: &str| sample.phases.get(name).copied().unwrap_or_default();
    let sum: f64 = parts.iter().map(|part| told(part.0)).sum();
    let rest = |part: &Part| if part.0 == REST { whole - sum } else { told(part.0) };
    parts.iter().map(rest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_and_the_rest_are_the_whole() {
        let phases = [
            ("route", 0.1),
            ("place", 0.5),
            ("wait", 10.0),
            ("restore", 11.0),
            ("restorer", 8.0),
            ("function", 1.0),
        ];
        let sample = Sample {
            ms: 12.0,
            phases: phases.map(|(name, ms)| (name.to_owned(), ms)).into(),
        };
        for subject in [Subject::Restored, Subject::Parked, Subject::Warm] {
            let parts = split(&sample, sample.ms, &of(subject));
            assert!((parts.iter().sum::<f64>() - 12.0).abs() < 1e-9, "{parts:?}");
        }
        let restored = split(&sample, sample.ms, &of(Subject::Restored));
        assert!((restored.last().unwrap() - 0.4).abs() < 1e-9, "{restored:?}");
        let inner = split(&sample, 11.0, &RESTORE);
        assert!((inner.last().unwrap() - 3.0).abs() < 1e-9, "{inner:?}");
        let restorer = split(&sample, 8.0, &RESTORER);
        let (rest, told) = restorer.split_last().unwrap();
        assert!(told.iter().all(|part| *part == 0.0), "{restorer:?}");
        assert_eq!(*rest, 8.0);
    }
}

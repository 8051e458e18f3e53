//! The function that randomly does whatever it may (`functions/adversary`), and the limits of what it may have.

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime};
use std::{env, fs};

use crate::differ::{Bounds, Picture, beyond};
use crate::{Folder, host};

/// Its code.
const FUNCTION: &str = include_str!("../functions/adversary/main.py");
/// No further round begins after this, unless a number of rounds was requested.
const ENOUGH: Duration = Duration::from_secs(60);

/// A number in the environment.
///
/// # Panics
/// If it is no number.
pub fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok().map(|text| text.parse().unwrap())
}

/// The first round's seed: `REKINDLE_ADVERSARY_SEED`, or a different one each time.
pub fn first_seed() -> u64 {
    number("REKINDLE_ADVERSARY_SEED").unwrap_or_else(|| {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        since.as_millis() as u64
    })
}

/// The seeds of `rounds` rounds, or of `REKINDLE_ADVERSARY_ROUNDS`.
pub fn seeds(rounds: u64) -> impl Iterator<Item = u64> {
    let (began, asked) = (Instant::now(), number("REKINDLE_ADVERSARY_ROUNDS"));
    let seeds = (first_seed()..).take(usize::try_from(asked.unwrap_or(rounds)).unwrap());
    seeds.take_while(move |_| asked.is_some() || began.elapsed() < ENOUGH)
}

/// The function under the name `name`, with random numbers from `seed` and these additional settings.
pub fn folder(name: &str, seed: u64, settings: &str) -> Folder {
    let settings = format!(
        "memory = \"256MiB\"\nmax_instances = 4\nnetwork = \"none\"\n{settings}\n[env]\nSEED = \
         \"{seed}\"\n[[warmup]]\npath = \"/\""
    );
    Folder::python(name, &settings, FUNCTION)
}

/// The original's rights, as the boot gave them. The original is checked too. `None` if it has ended.
///
/// # Panics
/// If it has more than any function may.
pub fn bounds(name: &str) -> Option<Bounds> {
    let original = host::with_variable(&format!("FN_NAME={name}"));
    let picture = Picture::of_namespace(*original.first()?).ok()?;
    let user = picture.all(" Uid").next()?.1.split(' ').next()?.to_owned();
    assert_ne!(user, "0", "{name}");
    // 1, or 0 if the host does not let the platform set it (docs/explanation/security.md).
    let cores = picture.all("/limit Max core file size").next()?.1.to_owned();
    assert!(["1 1 bytes", "0 0 bytes"].contains(&cores.as_str()), "{name}: {cores}");
    let bounds = Bounds { user, cores };
    assert_eq!(beyond(&picture, &bounds), [""; 0], "{name}: the original");
    Some(bounds)
}

/// Checks every instance of it, on any worker of this host. Returns how many there were.
///
/// # Panics
/// If one has more than it may.
pub fn look(name: &str, bounds: &Bounds, when: &str) -> usize {
    let (mut seen, mut looked) = (BTreeSet::new(), 0);
    for pid in host::with_variable(&format!("FN_NAME={name}")) {
        let Ok(namespace) = fs::read_link(format!("/proc/{pid}/ns/pid")) else {
            continue;
        };
        if !seen.insert(namespace) {
            continue;
        }
        // An instance that ends meanwhile has nothing.
        let picture = Picture::of_namespace(pid).unwrap_or_default();
        if picture.mappings.is_empty() {
            continue;
        }
        let told = beyond(&picture, bounds);
        assert!(told.is_empty(), "{name}, {when}: {told:#?}\n{:#?}", picture.facts);
        looked += 1;
    }
    looked
}

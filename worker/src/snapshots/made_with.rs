//! What this worker makes snapshots with. The scheduler uses this to renew snapshots.

use std::sync::LazyLock;

use rekindle_init::seccomp::{self, FilterChoice};
use rekindle_wire::renewal::MadeWith;

/// The form of the images that this worker makes. It must be raised with each change after which earlier snapshots
/// should be renewed: of ids, of limits, of the contents of images and notes. Changes of the system call filter do not
/// count.
const FORM: u32 = 4;
/// The current filter's digest.
static CURRENT: LazyLock<String> = LazyLock::new(|| blake3::hash(&seccomp::program()).to_hex().to_string());

/// Returns what snapshots of functions under this filter are made with.
#[must_use]
pub fn made_with(filter: FilterChoice) -> MadeWith {
    MadeWith {
        filter: filter.earlier().unwrap_or(&CURRENT).to_owned(),
        form: FORM,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_filter_outdates_snapshots_and_is_outdated_by_the_current_one() {
        let (current, earlier) = (FilterChoice::default(), seccomp::EARLIER[0].parse().unwrap());
        let (current, earlier) = (made_with(current), made_with(earlier));
        assert_eq!(earlier.filter, seccomp::EARLIER[0]);
        assert!(current.outdates(Some(&earlier)).is_some() && earlier.outdates(Some(&current)).is_some());
        assert_eq!(current.outdates(Some(&current)), None);
    }
}

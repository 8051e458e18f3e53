//! How CRIU learns which pages have changed since an earlier dump.
//!
//! CRIU's kernel probe records whether the kernel marks changed pages (soft-dirty bits). Many kernels do. On others no
//! page is ever marked, which suits a migration source: CRIU then takes every page for unchanged. But CRIU refuses to
//! look there, so the probe is edited to say that the kernel marks pages. Nothing else reads that byte.

use std::borrow::Cow;
use std::io::{self, Write as _};

use rustix::fs::OFlags;

use crate::host::sandbox::InnerProc;

/// Offset of `has_dirty_track` in `struct kerndat_s`, the probe of CRIU 4.2. It follows two magic numbers, a device
/// number, the last capability and the zero page's frame number.
const AT: usize = 32;
/// The bytes there are booleans: this one and the three that follow.
const BOOLEANS: std::ops::Range<usize> = AT..AT + 4;
const PROBE_BYTES: usize = 912;
/// The version with this probe.
const KNOWN: &str = "4.2";

/// Who tells CRIU which pages have changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tracking {
    /// The kernel marks them.
    Kernel,
    /// Nobody: no page is ever marked, but CRIU asks all the same.
    Never,
    /// CRIU does not ask.
    None,
}

/// Returns the probe of CRIU `version` as CRIU is to read it, and the resulting tracking.
pub(super) fn with_tracking<'a>(probe: &'a [u8], version: &str) -> (Cow<'a, [u8]>, Tracking) {
    let known = version == KNOWN || version.strip_prefix(KNOWN).is_some_and(|rest| rest.starts_with('.'));
    let plausible = probe.len() == PROBE_BYTES && probe[BOOLEANS].iter().all(|byte| *byte <= 1);
    if !known || !plausible {
        return (Cow::Borrowed(probe), Tracking::None);
    }
    if probe[AT] == 1 {
        return (Cow::Borrowed(probe), Tracking::Kernel);
    }
    let mut edited = probe.to_vec();
    edited[AT] = 1;
    (Cow::Owned(edited), Tracking::Never)
}

/// Makes the kernel forget which pages of a process have changed.
///
/// # Errors
/// Returns an error when the kernel refuses.
pub(crate) fn forget_changes(proc: &InnerProc, pid: i32) -> io::Result<()> {
    proc.open(&format!("{pid}/clear_refs"), OFlags::WRONLY)?.write_all(b"4")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_probe_that_is_known_is_edited() {
        let mut probe = vec![7; PROBE_BYTES];
        probe[BOOLEANS].copy_from_slice(&[0, 1, 1, 0]);
        let (edited, tracking) = with_tracking(&probe, "4.2.1");
        assert_eq!(tracking, Tracking::Never);
        assert_eq!((edited[AT], edited.len()), (1, PROBE_BYTES));
        let (again, tracking) = with_tracking(&edited, "4.2");
        assert_eq!((again, tracking), (Cow::Borrowed(edited.as_ref()), Tracking::Kernel));
        for (probe, version) in [
            (&probe[..], "4.3.0"),
            (&probe[..], "4.20.0"),
            (&probe[1..], "4.2.1"),
            (&vec![7; PROBE_BYTES][..], "4.2.1"),
        ] {
            assert_eq!(with_tracking(probe, version), (Cow::Borrowed(probe), Tracking::None));
        }
    }
}

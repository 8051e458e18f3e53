//! Control groups that are used again. A group whose sandbox has ended is cleaned and kept for the next:
//!
//! ```text
//! in use ──dropped──> empty, thawed, counts at zero, little memory left? ──yes──> spare ──> renamed, limited: in use
//!                                            └──no──> removed
//! ```
//!
//! A function cannot see remains in its group, since it has no control groups mounted. But the worker's readings of the
//! group decide whether an instance was killed for its memory, and memory still charged counts against the next limit.
//! So a group is kept only if all of that begins at zero. Every other group is removed, and a new one created.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::layout::Layout;
use super::{Cgroup, Cgroups, CreateError, FileError, Limits};

/// Memory that may be left charged to a spare group, in bytes: the kernel charges in batches, and frees some later. A
/// sandbox has sixteen times as much in addition to the function's own.
const RESIDUE_MAX: u64 = 1 << 20;
/// Maximum number of spare groups. Each costs the kernel some tens of kilobytes.
const SPARE_MAX: usize = 64;

/// Groups that wait for their next use.
#[derive(Debug, Default)]
pub(super) struct Spares(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    groups: Vec<Cgroup>,
    kept: u64,
    used_again: u64,
    refused: u64,
    closed: bool,
}

/// Counts of groups by outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpareCounts {
    /// Groups that wait.
    pub spare: usize,
    /// Groups used again.
    pub used_again: u64,
    /// Groups not kept, since something was left in them.
    pub refused: u64,
}

impl Spares {
    /// Keeps the group if it is clean; otherwise gives it back, to be removed.
    pub(super) fn take_back(self: &Arc<Self>, name: &str, layout: Layout) -> Result<(), Layout> {
        let number = {
            let mut state = self.0.lock();
            if state.closed || state.groups.len() >= SPARE_MAX {
                return Err(layout);
            }
            state.kept += 1;
            state.kept
        };
        if !matches!(layout.clean(), Ok(true)) {
            self.0.lock().refused += 1;
            return Err(layout);
        }
        let mut group = Cgroup {
            name: name.to_owned(),
            layout,
            removed: false,
            home: Weak::new(),
        };
        // Its user's name must be free at once.
        if group.rename(&format!("spare-{number}")).is_err() {
            group.removed = true;
            return Err(group.layout.clone());
        }
        group.home = Arc::downgrade(self);
        let mut state = self.0.lock();
        if state.closed {
            drop(state);
            group.home = Weak::new();
            return Ok(());
        }
        state.groups.push(group);
        Ok(())
    }
}

impl Cgroups {
    /// Returns a group with these limits and, if the kernel renames groups (v1 only), this name. It is a spare one if
    /// there is any, else a new one. Also returns whether it was used before.
    ///
    /// # Errors
    /// The same as [`Cgroups::create`].
    pub fn ready(&self, name: &str, limits: Limits) -> Result<(Cgroup, bool), CreateError> {
        let spare = self.spares.0.lock().groups.pop();
        if let Some(mut group) = spare {
            // The limit of memory and swap together is raised first: the limit of memory alone cannot exceed it.
            let assigned =
                group.raise_memory(limits.memory_bytes).is_ok() && self.assign(&mut group, name, limits).is_ok();
            if assigned {
                self.spares.0.lock().used_again += 1;
                return Ok((group, true));
            }
            group.home = Weak::new();
        }
        let mut group = self.create(name, limits)?;
        group.home = Arc::downgrade(&self.spares);
        Ok((group, false))
    }

    /// Returns the counts of groups that were [`ready`](Self::ready).
    pub fn spare_counts(&self) -> SpareCounts {
        let state = self.spares.0.lock();
        SpareCounts {
            spare: state.groups.len(),
            used_again: state.used_again,
            refused: state.refused,
        }
    }

    /// Removes the spare groups, and keeps none from now on. Blocks for some milliseconds.
    pub fn close(&self) {
        let groups = {
            let mut state = self.spares.0.lock();
            state.closed = true;
            std::mem::take(&mut state.groups)
        };
        drop(groups);
    }
}

impl Layout {
    /// Resets what can be reset, and returns whether everything is at zero then.
    fn clean(&self) -> Result<bool, FileError> {
        if !self.pids()?.is_empty() || self.has_children()? {
            return Ok(false);
        }
        match self {
            Self::V1(d) => {
                d.reset()?;
                Ok(d.oom_kills()? == 0 && d.memory_current()? <= RESIDUE_MAX)
            }
            Self::V2(d) => {
                d.reset()?;
                Ok(d.oom_kills()? == 0 && d.memory_current()? <= RESIDUE_MAX)
            }
        }
    }
}

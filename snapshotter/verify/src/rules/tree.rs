//! The processes and threads.

use std::collections::{BTreeMap, BTreeSet};

use crate::Images;
use crate::error::{EntryLocation, VerifyError};
use crate::expected::Expected;
use crate::frames::{all, magic, required};
use crate::messages::{Core, TreeEntry};

/// Maximum number of processes and threads together.
const TASKS_MAX: usize = 65_536;
/// CRIU's number for a dead process that waits for its parent.
const STATE_DEAD: u32 = 2;

pub(super) struct Tree<'a> {
    /// Parents before their children.
    pub(super) entries: Vec<(EntryLocation<'a>, TreeEntry)>,
    /// Threads of living processes, including the first ones.
    pub(super) tids: BTreeSet<u32>,
    living: BTreeSet<u32>,
    pub(super) dead: BTreeSet<u32>,
    groups: BTreeSet<u32>,
}

impl<'a> Tree<'a> {
    pub(super) fn read(images: &Images<'a>, expected: &Expected) -> Result<Self, VerifyError> {
        let entries = all::<TreeEntry>(images, "pstree.img", magic::PSTREE)?;
        let (mut tids, mut dead) = (BTreeSet::new(), BTreeSet::new());
        for (place, entry) in &entries {
            let is_new = !tids.contains(&entry.pid) && !dead.contains(&entry.pid);
            place.hold(expected.pids.contains(&entry.pid) && is_new, "pid", entry.pid)?;
            // For a dead process, CRIU writes one thread, whose id it never sets.
            if is_dead(images, entry.pid)? {
                place.hold(entry.threads.len() == 1, "threads", &entry.threads)?;
                dead.insert(entry.pid);
                continue;
            }
            place.hold(entry.threads.first() == Some(&entry.pid), "threads", &entry.threads)?;
            for tid in &entry.threads {
                let is_new = !dead.contains(tid) && tids.insert(*tid);
                place.hold(expected.pids.contains(tid) && is_new, "threads", tid)?;
            }
            place.hold(tids.len() + dead.len() <= TASKS_MAX, "threads", entry.threads.len())?;
        }
        let living = entries.iter().map(|(_, e)| e.pid).filter(|pid| !dead.contains(pid));
        let tree = Self {
            living: living.collect(),
            groups: entries.iter().map(|(_, e)| e.pgid).collect(),
            entries,
            tids,
            dead,
        };
        tree.check_relations(expected)?;
        Ok(tree)
    }

    /// Checks parents, groups and sessions. If the leader of a group or session is gone, CRIU creates a process with
    /// its id for the duration of the restore.
    fn check_relations(&self, expected: &Expected) -> Result<(), VerifyError> {
        if self.entries.is_empty() {
            return Err(VerifyError::Missing("pstree.img".to_owned()));
        }
        let by_pid: BTreeMap<u32, &TreeEntry> = self.entries.iter().map(|(_, e)| (e.pid, e)).collect();
        let mut before = BTreeSet::new();
        for (place, entry) in &self.entries {
            let parent = match before.is_empty() {
                true => entry.ppid == 0,
                false => before.contains(&entry.ppid) && !self.dead.contains(&entry.ppid),
            };
            place.hold(parent, "ppid", entry.ppid)?;
            before.insert(entry.pid);
            for (field, id) in [("pgid", entry.pgid), ("sid", entry.sid)] {
                let leader = by_pid.get(&id);
                let is_thread = leader.is_none() && self.tids.contains(&id);
                let same_session = leader.is_none_or(|leader| leader.sid == entry.sid);
                let good = expected.pids.contains(&id) && !is_thread && same_session;
                place.hold(good, field, id)?;
            }
        }
        Ok(())
    }

    pub(super) fn living(&self) -> impl Iterator<Item = u32> {
        self.living.iter().copied()
    }

    pub(super) fn is_living(&self, pid: u32) -> bool {
        self.living.contains(&pid)
    }

    /// Whether a process with this id exists, living or dead.
    pub(super) fn is_process(&self, pid: u32) -> bool {
        self.dead.contains(&pid) || self.is_living(pid)
    }

    /// Whether signals to this thread, process or group reach only these processes.
    pub(super) fn is_known(&self, id: u32) -> bool {
        self.tids.contains(&id) || self.dead.contains(&id) || self.groups.contains(&id)
    }
}

fn is_dead(images: &Images<'_>, pid: u32) -> Result<bool, VerifyError> {
    let (_, core) = required::<Core>(images, &format!("core-{pid}.img"), magic::CORE)?;
    Ok(core.tc.is_some_and(|task| task.task_state == STATE_DEAD))
}

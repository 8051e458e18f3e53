//! Processes: who shares what, who is whose child, sessions and groups, clocks.

use std::collections::BTreeMap;

use rekindle_restore_program::Code;
use rekindle_verify::messages::TreeEntry;
use rekindle_verify::{Process, Verified};

use crate::Refusal;
use crate::builder::Builder;

/// Refuses processes that share more than files.
pub(crate) fn share_nothing(processes: &[Process]) -> Result<(), Refusal> {
    let mut seen = Vec::new();
    for process in processes {
        let dead = Refusal::Process(process.tree.pid, "ended and is not yet reaped");
        let ids = process.ids.as_ref().ok_or(dead)?;
        let own = [ids.vm_id, ids.files_id, ids.fs_id, ids.sighand_id];
        let is_shared = |other: &[u32; 4]| std::iter::zip(other, own).any(|(other, own)| *other == own);
        if seen.iter().any(is_shared) {
            let what = "memory, descriptors, directories or handlers of another process";
            return Err(Refusal::Process(process.tree.pid, what));
        }
        seen.push(own);
    }
    Ok(())
}

/// `PR_SET_CHILD_SUBREAPER`.
const CHILD_SUBREAPER: u32 = 36;

/// Session and group, then children: a session cannot begin once a process leads a group. Children that have lost their
/// parent come last, from processes that lead their session or group and end.
pub(crate) fn compile(b: &mut Builder, processes: &[Process], number: usize) -> Result<(), Refusal> {
    let tree = &processes[number].tree;
    let strange = |what| Err(Refusal::Process(tree.pid, what));
    if number == 0 {
        // The hollow process leads both.
        if (tree.sid, tree.pgid) != (tree.pid, tree.pid) {
            return strange("a session or group of another process");
        }
    } else {
        let Some(parent) = processes[..number].iter().find(|p| p.tree.pid == tree.ppid) else {
            return strange("no parent among the processes");
        };
        let adopts = adopts(parent);
        let parent = &parent.tree;
        match (tree.sid, tree.pgid) {
            (sid, pgid) if sid == tree.pid && pgid == tree.pid => b.op(Code::Session, 0, []),
            (sid, pgid) if sid == parent.sid && pgid == tree.pid => b.op(Code::Group, 0, []),
            (sid, pgid) if sid == parent.sid && pgid == parent.pgid => {}
            _ if adopts && gone_leader(processes, tree, parent).is_some() => {
                if tree.pgid == tree.pid {
                    b.op(Code::Group, 0, []);
                }
            }
            _ => return strange("a session or group that is neither its own nor its parent's"),
        }
    }
    if adopts(&processes[number]) {
        b.op(Code::Control, CHILD_SUBREAPER, [1]);
    }
    let mut orphans = BTreeMap::<Leader, Vec<u32>>::new();
    for child in (number + 1..processes.len()).filter(|at| processes[*at].tree.ppid == tree.pid) {
        match gone_leader(processes, &processes[child].tree, tree) {
            Some(leader) => orphans.entry(leader).or_default().push(child as u32),
            None => b.op(Code::Child, child as u32, []),
        }
    }
    for (leader, children) in orphans {
        let bytes: Vec<u8> = children.iter().flat_map(|child| child.to_le_bytes()).collect();
        let (at, is_session) = (b.data(&bytes), leader.what == Leads::Session);
        b.op(
            Code::Orphans,
            leader.pid,
            [at, children.len() as u64, is_session.into()],
        );
    }
    Ok(())
}

/// Whether a process is given those below it whose parent ends.
fn adopts(process: &Process) -> bool {
    let task = process.threads.first().and_then(|thread| thread.core.tc.as_ref());
    task.is_some_and(|task| task.child_subreaper == Some(true))
}

/// What a process led.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Leads {
    Session,
    Group,
}

/// A process that is gone, and that led others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Leader {
    pid: u32,
    what: Leads,
}

/// The leader of a process's session or group, if it is gone, and the session or group is not that of `parent`.
fn gone_leader(processes: &[Process], tree: &TreeEntry, parent: &TreeEntry) -> Option<Leader> {
    let is_gone = |id: u32| !processes.iter().any(|other| other.tree.pid == id);
    let of = |pid, what| Some(Leader { pid, what });
    let in_own_group = tree.pgid == tree.pid;
    match (tree.sid, tree.pgid) {
        (sid, pgid) if sid != parent.sid && is_gone(sid) && (pgid == sid || in_own_group) => of(sid, Leads::Session),
        (sid, pgid) if sid == parent.sid && pgid != parent.pgid && is_gone(pgid) => of(pgid, Leads::Group),
        _ => None,
    }
}

/// The clocks of all processes.
pub(crate) fn clocks(b: &mut Builder, images: &Verified) -> Result<(), Refusal> {
    let mut all = images.clocks.values();
    let Some(clocks) = all.next() else { return Ok(()) };
    if all.next().is_some() {
        return Err(Refusal::Snapshot("processes with different clocks"));
    }
    let (m, t) = (&clocks.monotonic, &clocks.boottime);
    let at = b.longs(&[m.tv_sec, m.tv_nsec, t.tv_sec, t.tv_nsec]);
    b.op(Code::Clocks, 0, [at]);
    Ok(())
}

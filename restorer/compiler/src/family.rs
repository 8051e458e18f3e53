//! Processes: who shares what, who is whose child, sessions and groups, clocks.

use std::collections::{BTreeMap, BTreeSet};

use rekindle_restore_program::{Code, leads};
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
/// parent come last, from processes that end.
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
        let is_from_another = adopts(parent) && maker(processes, number).is_some_and(|made| made.through.is_some());
        let parent = &parent.tree;
        match (tree.sid, tree.pgid) {
            (sid, pgid) if sid == tree.pid && pgid == tree.pid => b.op(Code::Session, 0, []),
            (sid, pgid) if sid == parent.sid && pgid == tree.pid => b.op(Code::Group, 0, []),
            (sid, pgid) if sid == parent.sid && pgid == parent.pgid => {}
            _ if is_from_another && is_made(processes, number) => {
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
    let mut orphans = BTreeMap::<IntermediateProcess, Vec<u32>>::new();
    for child in 1..processes.len() {
        match maker(processes, child).filter(|made| made.by == number) {
            Some(ProcessMaker { through: None, .. }) => b.op(Code::Child, child as u32, []),
            Some(ProcessMaker {
                through: Some(through), ..
            }) => orphans.entry(through).or_default().push(child as u32),
            None => {}
        }
    }
    for (through, children) in orphans {
        let bytes: Vec<u8> = children.iter().flat_map(|child| child.to_le_bytes()).collect();
        let at = b.data(&bytes);
        let args = [at, children.len() as u64, through.leads.into()];
        b.op(Code::Orphans, through.pid, args);
    }
    Ok(())
}

/// Whether a process is given those below it whose parent ends.
fn adopts(process: &Process) -> bool {
    let task = process.threads.first().and_then(|thread| thread.core.tc.as_ref());
    task.is_some_and(|task| task.child_subreaper == Some(true))
}

/// A process that makes others and ends, so that they are adopted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct IntermediateProcess {
    pid: u32,
    /// As in [`leads`].
    leads: u32,
}

struct ProcessMaker {
    /// The process that does it, by number.
    by: usize,
    /// The process between both.
    through: Option<IntermediateProcess>,
}

/// Says how a process is made: by its parent, through a leader that is gone, or by the living leader of its session.
fn maker(processes: &[Process], number: usize) -> Option<ProcessMaker> {
    let tree = &processes[number].tree;
    let by = processes[..number].iter().position(|p| p.tree.pid == tree.ppid)?;
    let parent = &processes[by];
    Some(match gone_leader(processes, tree, &parent.tree) {
        Some(through) => ProcessMaker {
            by,
            through: Some(through),
        },
        None => living_leader(processes, tree, parent).unwrap_or(ProcessMaker { by, through: None }),
    })
}

/// Whether a process is made by one that is made before it. Only images that nobody dumped have others.
fn is_made(processes: &[Process], number: usize) -> bool {
    let mut at = number;
    for _ in processes {
        match maker(processes, at) {
            Some(made) if made.by == 0 => return true,
            Some(made) => at = made.by,
            None => return false,
        }
    }
    false
}

fn is_gone(processes: &[Process], id: u32) -> bool {
    !processes.iter().any(|other| other.tree.pid == id)
}

/// The leader of a process's session or group, if it is gone, and the session or group is not that of `parent`.
fn gone_leader(processes: &[Process], tree: &TreeEntry, parent: &TreeEntry) -> Option<IntermediateProcess> {
    let of = |pid, leads| Some(IntermediateProcess { pid, leads });
    let in_own_group = tree.pgid == tree.pid;
    let is_gone = |id| is_gone(processes, id);
    match (tree.sid, tree.pgid) {
        (sid, pgid) if sid != parent.sid && is_gone(sid) && (pgid == sid || in_own_group) => of(sid, leads::SESSION),
        (sid, pgid) if sid == parent.sid && pgid != parent.pgid && is_gone(pgid) => of(pgid, leads::GROUP),
        _ => None,
    }
}

/// How the leader of a process's session makes it, if the process has lost its parent since, and `parent` is given what
/// that leader's children leave.
fn living_leader(processes: &[Process], tree: &TreeEntry, parent: &Process) -> Option<ProcessMaker> {
    if tree.sid == tree.pid || tree.sid == parent.tree.sid {
        return None;
    }
    let by = processes.iter().position(|other| other.tree.pid == tree.sid)?;
    let leader = &processes[by];
    if leader.tree.sid != leader.tree.pid || adopter(processes, by)?.tree.pid != parent.tree.pid {
        return None;
    }
    let through = match tree.pgid {
        pgid if pgid == leader.tree.pgid || pgid == tree.pid => IntermediateProcess {
            pid: free_id(processes, by)?,
            leads: leads::NOTHING,
        },
        pgid if is_gone(processes, pgid) => IntermediateProcess {
            pid: pgid,
            leads: leads::GROUP,
        },
        _ => return None,
    };
    Some(ProcessMaker {
        by,
        through: Some(through),
    })
}

/// The process that is given what the children of one leave when they end.
fn adopter(processes: &[Process], number: usize) -> Option<&Process> {
    let mut at = number;
    while !adopts(&processes[at]) {
        let parent = processes[at].tree.ppid;
        at = processes[..at].iter().position(|other| other.tree.pid == parent)?;
    }
    Some(&processes[at])
}

/// An id that nothing has, another for each process that makes others.
fn free_id(processes: &[Process], maker: usize) -> Option<u32> {
    let mut used: BTreeSet<u32> = BTreeSet::new();
    for process in processes {
        let tree = &process.tree;
        used.extend([tree.pid, tree.sid, tree.pgid]);
        used.extend(process.threads.iter().map(|thread| thread.tid));
    }
    let first = processes.first()?.tree.pid;
    (first..).filter(|id| !used.contains(id)).nth(maker)
}

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

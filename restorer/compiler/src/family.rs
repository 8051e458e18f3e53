//! Processes: who shares what, who is whose child, sessions and groups, clocks.

use rekindle_restore_program::Code;
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

/// Session and group, then children: a session cannot begin once a process leads a group.
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
        let parent = &parent.tree;
        match (tree.sid, tree.pgid) {
            (sid, pgid) if sid == tree.pid && pgid == tree.pid => b.op(Code::Session, 0, []),
            (sid, pgid) if sid == parent.sid && pgid == tree.pid => b.op(Code::Group, 0, []),
            (sid, pgid) if sid == parent.sid && pgid == parent.pgid => {}
            _ => return strange("a session or group that is neither its own nor its parent's"),
        }
    }
    for child in (number + 1..processes.len()).filter(|at| processes[*at].tree.ppid == tree.pid) {
        b.op(Code::Child, child as u32, []);
    }
    Ok(())
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

//! What an instance's processes have from the kernel, and what becomes of it in copies: for `fn doctor --function`. The
//! runtime contract has the same as a table. Only a checkpoint knows for certain; this looks while the processes run.

mod descriptors;
mod mappings;
mod room;
mod sockets;

use std::collections::BTreeMap;
use std::fs;
use std::io;

use rekindle_init::causes::chain;
use rekindle_init::protocol::FUNCTION_PID;
use rekindle_wire::ApiError;
use rekindle_wire::api::{Fate, InstanceObjects, KernelObject};

use super::gone;
use super::lifecycle::Instance;
use super::running::RunningInstance;
use crate::criu::refusal::told_by_init;
use crate::errors::unavailable;
use crate::host::host_pids::processes_in;
use room::{InspectionBudget, Inspections};

/// Maximum number of objects in an answer.
const LISTED_MAX: usize = 2_000;
/// Maximum number of processes whose objects are looked at.
const PROCESSES_MAX: usize = 1_000;
/// Maximum number of characters of a name.
const NAME_MAX: usize = 160;

static LOOKS: Inspections = Inspections::new();

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Verdict {
    fate: Fate,
    what: String,
    becomes: &'static str,
    fix: Option<&'static str>,
}

impl Verdict {
    fn kept(what: impl Into<String>) -> Self {
        Self::of(Fate::Kept, what, "", None)
    }

    fn changed(what: impl Into<String>, becomes: &'static str, fix: &'static str) -> Self {
        Self::of(Fate::Changed, what, becomes, Some(fix))
    }

    fn refused(what: impl Into<String>, fix: &'static str) -> Self {
        Self::of(Fate::Refused, what, "no snapshot holds it", Some(fix))
    }

    fn of(fate: Fate, what: impl Into<String>, becomes: &'static str, fix: Option<&'static str>) -> Self {
        Self {
            fate,
            what: readable(&what.into()),
            becomes,
            fix,
        }
    }
}

/// A process, by its ids inside and on the host.
#[derive(Debug, Clone)]
struct Process {
    pid: u32,
    host: i32,
    program: String,
}

/// Looks at an instance that runs or is parked.
///
/// # Errors
/// If it does not run, its processes cannot be listed, or too much is looked at already.
pub(crate) async fn of(instance: &Instance) -> Result<InstanceObjects, ApiError> {
    let running = instance.running().ok_or_else(gone)?;
    let one = LOOKS.begin(&instance.id)?;
    // Its first process or object that would be missing in a snapshot.
    let missing = match running.is_frozen() {
        true => None,
        false => running.sandbox.refuse_strays().await.err().filter(|e| !e.is_passing()),
    };
    let looked = tokio::task::spawn_blocking(move || {
        let looked = look(&running, InspectionBudget::new());
        // Not before: it goes on when nobody waits any more.
        drop(one);
        looked
    });
    let looked = looked.await.unwrap_or_else(|e| Err(io::Error::other(e)));
    let (processes, mut objects, not_seen) = looked.map_err(|e| unavailable("look at the instance's processes", &e))?;
    objects.extend(missing.map(|e| KernelObject {
        pid: 0,
        program: String::new(),
        place: "the function".to_owned(),
        what: told_by_init(&e).unwrap_or_else(|| chain(&e)),
        count: 1,
        fate: Fate::Refused,
        becomes: String::new(),
        fix: None,
    }));
    objects.sort_by_key(|object| (object.fate, object.pid));
    let not_listed: u64 = objects.iter().skip(LISTED_MAX).map(|object| object.count).sum();
    objects.truncate(LISTED_MAX);
    Ok(InstanceObjects {
        instance: instance.id.clone(),
        function: instance.spec.function.clone(),
        version: instance.spec.version,
        processes,
        objects,
        left_out: not_listed + not_seen,
    })
}

fn look(running: &RunningInstance, mut room: InspectionBudget) -> io::Result<(u64, Vec<KernelObject>, u64)> {
    let all = processes_in(&running.cgroup).map_err(io::Error::other)?.into_iter();
    // Those before the function's first are the platform's.
    let hosts: BTreeMap<_, _> = all.filter(|(pid, _)| *pid >= FUNCTION_PID.cast_unsigned()).collect();
    let processes: Vec<_> = hosts
        .iter()
        .take(PROCESSES_MAX)
        .map(|(pid, host)| named(*pid, *host))
        .collect();
    let mut objects = Vec::new();
    let mut sockets = sockets::Sockets::default();
    for process in &processes {
        // A process that has ended meanwhile has none.
        objects.extend(descriptors::of(process, &mut sockets, &mut room).unwrap_or_default());
        objects.extend(mappings::of(process, &mut room).unwrap_or_default());
    }
    objects.extend(sockets.objects(running.client.port()));
    Ok((hosts.len() as u64, objects, room.left_out()))
}

fn named(pid: u32, host: i32) -> Process {
    let name = fs::read(format!("/proc/{host}/comm")).unwrap_or_default();
    Process {
        pid,
        host,
        program: readable(String::from_utf8_lossy(&name).trim_end()),
    }
}

/// Returns a name that a function has chosen as a line can show it.
fn readable(name: &str) -> String {
    let shown = name.chars().map(|c| if c.is_control() { '?' } else { c });
    shown.take(NAME_MAX).collect()
}

impl Process {
    fn object(&self, place: String, count: u64, verdict: Verdict) -> KernelObject {
        KernelObject {
            pid: self.pid,
            program: self.program.clone(),
            place,
            what: verdict.what,
            count,
            fate: verdict.fate,
            becomes: verdict.becomes.to_owned(),
            fix: verdict.fix.map(str::to_owned),
        }
    }
}

//! What the kernel says of a process and its threads in `status`, `stat`, `limits` and the like.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use super::{Picture, Seen};
use crate::host;

/// Lines of `status` for each thread. `SigQ` counts for all of a user; sizes and switches are transient.
const STATUS: [&str; 24] = [
    "Umask",
    "Uid",
    "Gid",
    "Groups",
    "NSpid",
    "NSpgid",
    "NSsid",
    "CoreDumping",
    "THP_enabled",
    "SigPnd",
    "ShdPnd",
    "SigBlk",
    "SigIgn",
    "SigCgt",
    "CapInh",
    "CapPrm",
    "CapEff",
    "CapBnd",
    "CapAmb",
    "NoNewPrivs",
    "Seccomp",
    "Seccomp_filters",
    "TracerPid",
    "Cpus_allowed",
];
/// Fields of `stat` for each thread, by their numbers in proc(5).
const STAT: [(&str, usize); 6] = [
    ("terminal", 7),
    ("terminal's group", 8),
    ("nice", 19),
    ("exit signal", 38),
    ("real-time priority", 40),
    ("policy", 41),
];
/// Fields of `stat` for the process: where the parts of its memory are.
const LAYOUT: [(&str, usize); 10] = [
    ("code", 26),
    ("end of code", 27),
    ("stack", 28),
    ("data", 45),
    ("end of data", 46),
    ("break", 47),
    ("arguments", 48),
    ("end of arguments", 49),
    ("environment", 50),
    ("end of environment", 51),
];
/// Files whose whole text is the fact.
const TEXTS: [&str; 6] = [
    "oom_score_adj",
    "cmdline",
    "environ",
    "coredump_filter",
    "personality",
    "timerslack_ns",
];

/// The id inside of the task with this directory.
pub(super) fn inner_id(task: &Path) -> io::Result<i32> {
    let status = fs::read_to_string(task.join("status"))?;
    let ids = status.lines().find_map(|l| l.strip_prefix("NSpid:"));
    let inner = ids.and_then(|ids| ids.split_whitespace().last()?.parse().ok());
    inner.ok_or_else(|| io::Error::other("no id inside"))
}

/// Ids inside by those of the host, of all threads of these processes.
pub(super) fn by_host_id(processes: &BTreeMap<i32, i32>) -> BTreeMap<i32, i32> {
    let mut found = BTreeMap::new();
    for process in processes.values() {
        let threads = host::threads(*process).into_iter();
        found.extend(threads.filter_map(|thread| Some((thread, host::inner_pid(thread)?))));
    }
    found
}

pub(super) fn picture(seen: &Seen<'_>, picture: &mut Picture) -> io::Result<()> {
    let own = seen.inner;
    for name in TEXTS {
        let text = fs::read(seen.proc.join(name))?;
        let text = String::from_utf8_lossy(&text).replace('\0', " ");
        picture.say(format!("{own}/{name}"), text.trim_end());
    }
    for line in fs::read_to_string(seen.proc.join("limits"))?.lines().skip(1) {
        let (name, values) = line.split_at(line.len().min(26));
        let values: Vec<&str> = values.split_whitespace().collect();
        picture.say(format!("{own}/limit {}", name.trim()), values.join(" "));
    }
    timers(seen, picture)?;
    let stat = stat(&seen.proc)?;
    for (name, field) in LAYOUT {
        picture.say(format!("{own}/layout {name}"), stat[field - 3].clone());
    }
    let parent: i32 = stat[1].parse().unwrap_or_default();
    // Init is not examined.
    let parent = seen.tasks.get(&parent).copied().unwrap_or(1);
    picture.say(format!("{own}/parent"), parent.to_string());
    for thread in fs::read_dir(seen.proc.join("task"))? {
        let path = thread?.path();
        // A thread that ends meanwhile has none of this.
        let _ended = of_thread(seen, &path, picture);
    }
    Ok(())
}

fn of_thread(seen: &Seen<'_>, path: &Path, picture: &mut Picture) -> io::Result<()> {
    let task = format!("{}/thread {}", seen.inner, inner_id(path)?);
    let status = fs::read_to_string(path.join("status"))?;
    let lines = status.lines().filter_map(|line| line.split_once(':'));
    for (name, value) in lines.filter(|(name, _)| STATUS.contains(name)) {
        let mut values: Vec<&str> = value.split_whitespace().collect();
        if name.starts_with("NS") {
            // The others are the host's.
            values = values.split_off(values.len().saturating_sub(1));
        }
        let values = match name {
            "Uid" | "Gid" | "Groups" => values
                .iter()
                .map(|id| seen.ids.inside(id))
                .collect::<Vec<_>>()
                .join(" "),
            _ => values.join(" "),
        };
        picture.say(format!("{task} {name}"), values);
    }
    let stat = stat(path)?;
    for (name, field) in STAT {
        picture.say(format!("{task} {name}"), stat[field - 3].clone());
    }
    let state = match stat[0].as_str() {
        "R" | "S" | "D" => "runs",
        "T" => "stopped",
        "t" => "traced",
        "Z" | "X" => "ended",
        other => other,
    };
    picture.say(format!("{task} state"), state);
    let name = fs::read_to_string(path.join("comm"))?;
    picture.say(format!("{task} name"), name.trim_end());
    Ok(())
}

/// The fields of `stat` from the third on.
fn stat(task: &Path) -> io::Result<Vec<String>> {
    let text = fs::read_to_string(task.join("stat"))?;
    let (_, fields) = text.rsplit_once(')').unwrap_or_default();
    let fields: Vec<String> = fields.split_whitespace().map(str::to_owned).collect();
    match fields.len() > 48 {
        true => Ok(fields),
        false => Err(io::Error::other("a short stat")),
    }
}

/// POSIX timers; `timers` does not show their remaining time. Whom they notify is shown by an id of the host.
fn timers(seen: &Seen<'_>, picture: &mut Picture) -> io::Result<()> {
    let mut id = "";
    let text = fs::read_to_string(seen.proc.join("timers"))?;
    for line in text.lines() {
        let (name, value) = line.split_once(": ").unwrap_or((line, ""));
        if name == "ID" {
            id = value;
            continue;
        }
        let inner = |host: &str| seen.tasks.get(&host.parse().ok()?).map(|inner| inner.to_string());
        let value = match value.rsplit_once('.') {
            Some((how, host)) => format!("{how} {}", inner(host).unwrap_or_else(|| host.to_owned())),
            None => value.to_owned(),
        };
        picture.say(format!("{}/timer {id} {name}", seen.inner), value);
    }
    Ok(())
}

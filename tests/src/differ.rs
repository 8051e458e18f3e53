//! Compares two instances as the host sees them: a function before its checkpoint, and a copy of it.
//!
//! A [`Picture`] is a table of facts, `501/thread 501 CapEff` with `0000000000000000`, and of what each process maps.
//! It has no ids of the host. Processes go by their ids inside, pipes and sockets by the order in which they are met,
//! mounts by their mount points. [`compare`] names each fact that differs; those that may differ are in `tolerance`,
//! each with its reason. No difference of rights is tolerated: ids, capabilities, filters, limits, descriptors, the
//! access of mappings, paths.

mod descriptors;
mod ids;
mod mappings;
mod private_files;
mod rights;
mod tasks;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ids::Ids;
pub use mappings::{Mapping, Source};
pub use rights::{Bounds, beyond};

/// What the host sees of an instance.
#[derive(Debug, Clone, Default)]
pub struct Picture {
    /// Each fact by its name. Those of a process begin with its id inside.
    pub facts: BTreeMap<String, String>,
    /// What each process maps, by its id inside, in the order of addresses.
    pub mappings: BTreeMap<i32, Vec<Mapping>>,
    /// Facts that a process has through a mount: the path of the fact, and the mount point inside; `None` for a mount
    /// of the kernel's own.
    mounts: BTreeMap<String, Option<String>>,
    /// Pipes and sockets, by the facts that have them.
    shared: BTreeMap<String, String>,
    /// The instance's pid namespace.
    namespace: Option<PathBuf>,
}

/// How two pictures differ.
#[derive(Debug, Default)]
pub struct Comparison {
    /// Forbidden differences, each on a line.
    pub differences: Vec<String>,
    /// Tolerated differences, with the reason.
    pub tolerated: Vec<String>,
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (all, some) = (self.differences.join("\n  "), self.tolerated.join("\n  "));
        write!(f, "differences:\n  {all}\ntolerated:\n  {some}")
    }
}

impl Picture {
    /// Pictures all processes in the pid namespace of process `one` (an id of the host), except its init. A process
    /// that ends meanwhile is left out.
    ///
    /// # Errors
    /// If `one` is gone.
    pub fn of_namespace(one: i32) -> io::Result<Self> {
        let processes = inside(one)?;
        let mut picture = Self {
            namespace: Some(fs::read_link(format!("/proc/{one}/ns/pid"))?),
            ..Self::default()
        };
        let mut numbers = Numbers::default();
        let tasks = tasks::by_host_id(&processes);
        for (inner, host) in &processes {
            let proc = PathBuf::from(format!("/proc/{host}"));
            let Ok(ids) = Ids::of(&proc) else { continue };
            let seen = Seen {
                inner: *inner,
                proc,
                tasks: &tasks,
                ids,
            };
            // Facts of a process that ended meanwhile are discarded.
            let mut own = Self::default();
            if seen.picture(&mut own, &mut numbers).is_ok() && seen.proc.join("exe").read_link().is_ok() {
                picture.facts.extend(own.facts);
                picture.mappings.extend(own.mappings);
                picture.mounts.extend(own.mounts);
                picture.shared.extend(own.shared);
            }
        }
        let proc = PathBuf::from(format!("/proc/{one}"));
        private_files::picture(&proc.join("root"), &Ids::of(&proc)?, &mut picture);
        Ok(picture)
    }

    fn say(&mut self, name: String, value: impl Into<String>) {
        self.facts.insert(name, value.into());
    }

    /// The value of each fact whose name ends like this, by name.
    pub fn all<'a>(&'a self, suffix: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        let all = self.facts.iter().filter(move |(name, _)| name.ends_with(suffix));
        all.map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

/// The processes in the namespace of process `one`, by their ids inside; without its init.
fn inside(one: i32) -> io::Result<BTreeMap<i32, i32>> {
    let namespace = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/pid"));
    let own = namespace(one)?;
    let mut found = BTreeMap::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if namespace(pid).is_ok_and(|other| other == own)
            && let Ok(inner) = tasks::inner_id(&entry.path())
            && inner != 1
        {
            found.insert(inner, pid);
        }
    }
    Ok(found)
}

/// One process while it is examined.
struct Seen<'a> {
    inner: i32,
    proc: PathBuf,
    /// Ids inside by ids of the host, of all tasks of the instance.
    tasks: &'a BTreeMap<i32, i32>,
    ids: Ids,
}

impl Seen<'_> {
    fn picture(&self, picture: &mut Picture, numbers: &mut Numbers) -> io::Result<()> {
        tasks::picture(self, picture)?;
        self.namespaces(picture, numbers)?;
        picture.say(format!("{}/users", self.inner), self.ids.to_string());
        let mounts = Mounts::of(&self.proc)?;
        for link in ["cwd", "root", "exe"] {
            let path = self.proc.join(link);
            let name = format!("{}/{link}", self.inner);
            picture.say(name.clone(), path.read_link()?.to_string_lossy());
            picture.mounts.insert(name, mounts.at(&path)?);
        }
        for (at, mount) in mounts.table.iter() {
            picture.say(format!("{}/mount {at}", self.inner), self.ids.in_options(mount));
        }
        descriptors::picture(self, &mounts, picture, numbers)?;
        let mapped = mappings::of(&self.proc)?;
        for mapping in mapped.iter().filter(|m| m.of_file()) {
            let range = format!("{:x}-{:x}", mapping.start, mapping.end);
            let mount = mounts.at(&self.proc.join("map_files").join(&range))?;
            picture.mounts.insert(format!("{}/map {range}", self.inner), mount);
        }
        picture.mappings.insert(self.inner, mapped);
        Ok(())
    }

    fn namespaces(&self, picture: &mut Picture, numbers: &mut Numbers) -> io::Result<()> {
        for entry in fs::read_dir(self.proc.join("ns"))? {
            let kind = entry?.file_name().to_string_lossy().into_owned();
            let of = |proc: &Path| proc.join("ns").join(&kind).read_link();
            let own = of(&self.proc)?;
            let which = match own == of(Path::new("/proc/self"))? {
                true => "the host's".to_owned(),
                false => format!("its own, {}", numbers.of(&own.to_string_lossy())),
            };
            picture.say(format!("{}/namespace {kind}", self.inner), which);
        }
        Ok(())
    }
}

/// Numbers in place of the kernel's: `pipe:[4711]` is `pipe 1` if it is the first pipe met.
#[derive(Default)]
struct Numbers(BTreeMap<String, (String, usize)>);

impl Numbers {
    fn of(&mut self, link: &str) -> String {
        let kind = link.split(':').next().unwrap_or_default().to_owned();
        let next = 1 + self.0.values().filter(|(other, _)| *other == kind).count();
        let (kind, number) = self.0.entry(link.to_owned()).or_insert((kind, next));
        format!("{kind} {number}")
    }
}

/// The mounts that a process sees.
struct Mounts {
    by_id: BTreeMap<String, String>,
    /// What is mounted at each point, without ids.
    table: BTreeMap<String, String>,
}

impl Mounts {
    fn of(proc: &Path) -> io::Result<Self> {
        let (mut by_id, mut table) = (BTreeMap::new(), BTreeMap::new());
        for line in fs::read_to_string(proc.join("mountinfo"))?.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let (id, root, at, options) = (words[0], words[3], words[4], words[5]);
            let kind = line.split_once(" - ").map_or("", |(_, kind)| kind);
            // The host sees whose control group it is; inside, it is the root.
            let root = if kind.starts_with("cgroup") { "/" } else { root };
            by_id.insert(id.to_owned(), at.to_owned());
            table.insert(at.to_owned(), format!("{root} {options} {kind}"));
        }
        Ok(Self { by_id, table })
    }

    /// Mount point of the file that a magic link leads to.
    fn at(&self, link: &Path) -> io::Result<Option<String>> {
        use std::os::fd::AsRawFd;
        use std::os::unix::fs::OpenOptionsExt;
        let looked = fs::File::options().read(true).custom_flags(libc::O_PATH).open(link)?;
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", looked.as_raw_fd()))?;
        Ok(self.by_id(&info))
    }

    /// Mount point of the file with this `fdinfo`.
    fn by_id(&self, info: &str) -> Option<String> {
        let id = info.lines().find_map(|l| l.strip_prefix("mnt_id:"))?;
        self.by_id.get(id.trim()).cloned()
    }
}

/// Why a fact may differ; `None` for one that may not.
fn tolerance(name: &str, before: &str, after: &str) -> Option<&'static str> {
    let (_, fact) = name.split_once('/')?;
    let with = |flags: &str, more: u32| u32::from_str_radix(flags, 8).map(|f| f | more);
    match fact {
        "namespace time" | "namespace time_for_children" if after.starts_with("its own") => {
            Some("a copy has clocks of its own (docs/explanation/security.md)")
        }
        "fd 1 flags" | "fd 2 flags" if with(before, LARGEFILE) == with(after, LARGEFILE) => {
            Some("outputs are opened anew; the kernel marks them O_LARGEFILE, which means nothing on 64 bits")
        }
        _ if fact.ends_with(" flags") && with(before, DIRECTORY) == with(after, DIRECTORY) => {
            Some("O_DIRECTORY asks whether it is one, when it is opened")
        }
        _ if fact.starts_with("fd ") && after.ends_with(CONNECTED) && before.starts_with(after) => {
            Some("a connection whose listening socket is gone is made as a pair (docs/reference/restore-program.md)")
        }
        _ if fact.ends_with(" inode") && name.starts_with("file/") => Some("private files are made anew"),
        _ if fact.ends_with(" times") && name.starts_with("file/") => Some("private files are made anew"),
        _ => None,
    }
}

/// Ends the description of a UNIX socket that is connected and has no name.
const CONNECTED: &str = " state 03 ";
/// Memory that the C library has set aside for a heap, and lets in as that grows. The original may use more of it: its
/// after-restore hook is called after the checkpoint.
const HEAP_GREW: &str = "rw-p (me mr mw nr rd wr) of Anonymous became ---p (me mr mw nr) of Anonymous";
const LARGEFILE: u32 = 0o100_000;
const DIRECTORY: u32 = 0o200_000;

/// Memory that a thread made after the restore may need anew, such as its signal stack.
const STACKS_BYTES: u64 = 256 << 10;
/// The least that V8 takes for its heap at once, bytes. Nothing of the platform's is as large.
const TAKEN_LEAST: u64 = 256 << 10;
/// The most that it may have taken for the few requests of a copy.
const TAKEN_MOST: u64 = 1 << 20;
/// Facts that distinguish threads of one process without being a right.
const OF_A_THREAD: [&str; 5] = ["NSpid", "exit signal", "name", "SigBlk", "SigPnd"];

/// Compares a function before its checkpoint with a copy of it.
pub fn compare(before: &Picture, after: &Picture) -> Comparison {
    let mut result = Comparison::default();
    let names: BTreeSet<&String> = before.facts.keys().chain(after.facts.keys()).collect();
    for name in names {
        match (before.facts.get(name), after.facts.get(name)) {
            (Some(one), Some(other)) if one == other => {}
            (Some(one), Some(other)) => match tolerance(name, one, other) {
                Some(why) => result.tolerated.push(format!("{name}: {one} became {other}: {why}")),
                None => result.differences.push(format!("{name}: {one} became {other}")),
            },
            (Some(one), None) => result.differences.push(format!("{name}: {one} is gone")),
            (None, Some(other)) if is_of_new_thread(before, name, other) => {
                let why = "a thread that the function made after its restore, with no other rights than its first";
                result.tolerated.push(format!("{name}: {other} is new: {why}"));
            }
            (None, Some(other)) => result.differences.push(format!("{name}: {other} is new")),
            (None, None) => {}
        }
    }
    for (pid, mapped) in &before.mappings {
        let Some(others) = after.mappings.get(pid) else {
            continue;
        };
        let ranges = mappings::compare(mapped, others);
        let added: u64 = ranges.iter().filter_map(|range| range.added).sum();
        let is_stacks = added <= STACKS_BYTES && new_threads(before, after, *pid);
        for range in ranges {
            let line = format!("{pid}/map {}", range.told);
            match range.added {
                Some(_) if is_stacks => result
                    .tolerated
                    .push(format!("{line}: of a thread that was made after the restore")),
                Some(bytes) if bytes >= TAKEN_LEAST && added <= TAKEN_MOST => result.tolerated.push(format!(
                    "{line}: a piece that the runtime's heap took after the restore"
                )),
                _ if line.ends_with(HEAP_GREW) => result
                    .tolerated
                    .push(format!("{line}: the original's heap grew after the checkpoint")),
                _ => result.differences.push(line),
            }
        }
    }
    result
}

/// `501/thread 2001 Uid` → (501, 2001, `Uid`).
fn of_thread(name: &str) -> Option<(i32, i32, &str)> {
    let (pid, rest) = name.split_once("/thread ")?;
    let (thread, fact) = rest.split_once(' ')?;
    Some((pid.parse().ok()?, thread.parse().ok()?, fact))
}

/// Whether a fact that only the copy has belongs to a new thread: one that only the copy has, of a process that both
/// have. It must be no more than that process may do.
fn is_of_new_thread(before: &Picture, name: &str, value: &str) -> bool {
    let Some((pid, thread, fact)) = of_thread(name) else {
        return false;
    };
    let of = |thread: i32, fact: &str| before.facts.get(&format!("{pid}/thread {thread} {fact}"));
    let known = of(thread, "NSpid").is_some();
    !known && of(pid, fact).is_some_and(|first| first == value || OF_A_THREAD.contains(&fact))
}

fn new_threads(before: &Picture, after: &Picture, pid: i32) -> bool {
    let of_process = after
        .facts
        .keys()
        .filter(|name| of_thread(name).is_some_and(|(own, ..)| own == pid));
    of_process
        .into_iter()
        .any(|name| name.ends_with(" NSpid") && !before.facts.contains_key(name))
}

#[cfg(test)]
mod tests;

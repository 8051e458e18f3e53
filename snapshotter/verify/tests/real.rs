//! A process with a bit of everything open, dumped by the real CRIU in namespaces of its own as the platform does it.
//! Its images pass as they are, and with any one number or byte string changed give no right more.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "../src/tests/mutate.rs"]
mod mutate;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rekindle_verify::{
    Expected, Images, Limit, MigrationImages, OpenedPath, PageLocation, Purpose, RESOURCES, Verified,
};
use rekindle_verify::{VerifyError, verify, verify_images};

const CRIU: &str = "/usr/local/lib/rekindle/criu/criu";
const UID: u32 = 100_001;
/// One instruction that allows all.
const FILTER: [u8; 8] = [6, 0, 0, 0, 0, 0, 0xff, 0x7f];

/// Why there can be no dump here.
fn obstacle() -> Option<&'static str> {
    if !nix::unistd::geteuid().is_root() {
        return Some("not root");
    }
    (!Path::new(CRIU).exists()).then_some("no CRIU")
}

fn expected(output_pipe: u32) -> Expected {
    let mut limits = [Limit::AtMost(u64::MAX); RESOURCES];
    limits[4] = Limit::Exactly(0);
    limits[7] = Limit::AtMost(1024);
    limits[8] = Limit::AtMost(65_536);
    // Niceness and real time.
    limits[13] = Limit::Exactly(0);
    limits[14] = Limit::Exactly(0);
    Expected {
        uid: UID,
        gid: UID,
        groups: Vec::new(),
        filters: vec![*blake3::hash(&FILTER).as_bytes()],
        limits,
        oom_score_adj_min: 0,
        pids: 300..=4_194_303,
        writes_root: false,
        output_pipes: vec![output_pipe],
        other_files: vec!["dump.log".to_owned()],
        travelling: None,
    }
}

struct Dump {
    dir: tempfile::TempDir,
    output_pipe: u32,
}

impl Dump {
    fn take() -> Option<Self> {
        Self::of(&[])
    }

    /// Of one that moves: CRIU dumps no page, and is told of a file that it shall not look for.
    fn describe() -> Option<(Self, String)> {
        let dump = Self::of(&["known.py"])?;
        // CRIU made a link to the one, and reads neither any more.
        std::fs::remove_file(dump.images().join("parent")).unwrap();
        std::fs::remove_dir_all(dump.images().join("known")).unwrap();
        let template = std::fs::read_to_string(dump.dir.path().join("template")).unwrap();
        Some((dump, template))
    }

    fn of(scripts_beside: &[&str]) -> Option<Self> {
        if let Some(why) = obstacle() {
            assert!(std::env::var_os("REKINDLE_REQUIRE_ALL").is_none(), "{why}");
            println!("skipped: {why}");
            return None;
        }
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/real");
        let Output { status, stdout, stderr } = Command::new("unshare")
            .args([
                "--mount",
                "--pid",
                "--net",
                "--uts",
                "--ipc",
                "--fork",
                "--kill-child",
                "--mount-proc",
            ])
            .arg(scripts.join("dump.sh"))
            .args([Path::new(CRIU), &scripts.join("function.py"), dir.path()])
            .args(scripts_beside.iter().map(|script| scripts.join(script)))
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&stderr);
        assert!(status.success(), "{status}: {said}");
        let output_pipe = String::from_utf8(stdout).unwrap().parse().unwrap();
        Some(Self { dir, output_pipe })
    }

    fn images(&self) -> PathBuf {
        self.dir.path().join("images")
    }

    fn read(&self) -> BTreeMap<String, Vec<u8>> {
        let entries = std::fs::read_dir(self.images()).unwrap().map(|entry| entry.unwrap());
        entries
            .map(|entry| (entry.file_name().into_string().unwrap(), entry.path()))
            .filter(|(name, _)| name != "dump.log")
            .map(|(name, path)| {
                let opaque = name.starts_with("pages-");
                let bytes = if opaque {
                    Vec::new()
                } else {
                    std::fs::read(path).unwrap()
                };
                (name, bytes)
            })
            .collect()
    }
}

/// What processes may, but for what has a place.
#[derive(Debug, PartialEq)]
struct Rights {
    users: BTreeSet<Vec<u32>>,
    filters: BTreeSet<[u8; 32]>,
    limits: Vec<(u64, u64)>,
    nice: BTreeSet<i32>,
    modes: BTreeSet<Option<u32>>,
}

impl Rights {
    fn of(verified: &Verified) -> Self {
        let threads = || verified.processes.iter().flat_map(|p| &p.threads);
        let thread_cores = || threads().filter_map(|t| t.core.thread_core.as_ref());
        let users = thread_cores().filter_map(|t| t.creds.as_ref()).map(|c| {
            let ids = [
                c.uid, c.gid, c.euid, c.egid, c.suid, c.sgid, c.fsuid, c.fsgid, c.secbits,
            ];
            let sets = [&c.cap_inh, &c.cap_prm, &c.cap_eff, &c.cap_bnd, &c.cap_amb, &c.groups];
            ids.into_iter()
                .chain(sets.into_iter().flatten().copied())
                .chain(c.no_new_privs)
                .collect()
        });
        let tasks = threads().filter_map(|t| t.core.tc.as_ref());
        let limits = tasks.filter_map(|t| t.rlimits.as_ref()).flat_map(|l| &l.rlimits);
        Self {
            users: users.collect(),
            filters: verified
                .filters
                .iter()
                .map(|f| *blake3::hash(&f.filter).as_bytes())
                .collect(),
            limits: limits.map(|l| (l.cur, l.max)).collect(),
            nice: thread_cores().filter_map(|t| t.sched_nice).collect(),
            modes: thread_cores().map(|t| t.seccomp_mode).collect(),
        }
    }

    /// Whether these are no more than those.
    fn within(&self, whole: &Self) -> bool {
        let lower = |(mine, theirs): (&(u64, u64), &(u64, u64))| mine.0 <= theirs.1 && mine.1 <= theirs.1;
        self.users == whole.users
            && self.filters == whole.filters
            && self.limits.len() == whole.limits.len()
            && self.limits.iter().zip(&whole.limits).all(lower)
            && self.modes.is_subset(&whole.modes)
            && self.nice.iter().all(|nice| *nice >= 0)
    }
}

#[test]
fn a_real_dump_passes_and_tells_what_is_opened() {
    let Some(dump) = Dump::take() else { return };
    let verified = verify(&dump.images(), &expected(dump.output_pipe)).unwrap();
    let opened = |path: &str, purpose: Purpose| {
        let mut all = verified.opened_paths();
        assert!(
            all.any(|o| o.path == path.as_bytes() && o.purpose == purpose),
            "{path} {purpose:?}"
        );
    };
    opened("/tmp", Purpose::Directory);
    opened("/tmp", Purpose::Watch);
    opened("/tmp/ghost", Purpose::Ghost);
    opened("/tmp/written", Purpose::Regular);
    opened("/tmp/written", Purpose::Mapping);
    opened("/tmp/fifo", Purpose::Fifo);
    opened("/tmp/socket", Purpose::Socket);
    opened("/dev/urandom", Purpose::Device);
    opened("/", Purpose::Root);
    let threads: Vec<_> = verified.processes.iter().map(|p| p.threads.len()).collect();
    assert_eq!(threads, [3, 1, 1]);
    let other = Expected {
        uid: UID + 1,
        ..expected(dump.output_pipe)
    };
    assert!(verify(&dump.images(), &other).is_err());
    std::os::unix::fs::symlink("/etc/shadow", dump.images().join("pages-99.img")).unwrap();
    let linked = verify(&dump.images(), &expected(dump.output_pipe)).unwrap_err();
    assert!(matches!(linked, VerifyError::NotAFile(_)), "{linked}");
}

#[test]
fn a_real_dump_of_one_that_moves_passes_as_such_and_as_nothing_else() {
    let Some((dump, template)) = Dump::describe() else {
        return;
    };
    let travelling = |templates: &[&str]| Expected {
        travelling: Some(MigrationImages {
            templates: templates.iter().map(|name| (*name).to_owned()).collect(),
            pages: PageLocation::Dump,
        }),
        ..expected(dump.output_pipe)
    };
    let verified = verify(&dump.images(), &travelling(&[&template])).unwrap();
    let external = verified.files.values().filter_map(|file| file.reg.as_ref());
    let external: Vec<_> = external.filter(|file| file.ext.is_some()).collect();
    // CRIU remembers few files: it may give one of them several ids.
    assert!(!external.is_empty());
    assert!(external.iter().all(|file| file.name == template.as_bytes()));
    assert!(verified.opened_paths().all(|opened| opened.path.starts_with(b"/")));
    // Nothing of the memory of a process is in an image.
    let pages = std::fs::metadata(dump.images().join("pages-1.img")).unwrap();
    assert_eq!(pages.len(), 0);
    for other in [travelling(&[]), travelling(&["file[1:2]"]), expected(dump.output_pipe)] {
        let refused = verify(&dump.images(), &other).unwrap_err();
        assert!(
            matches!(refused, VerifyError::Field { field: "reg.ext", .. }),
            "{refused}"
        );
    }
}

#[test]
fn no_change_of_a_real_dump_gives_a_right() {
    let Some(dump) = Dump::take() else { return };
    let (images, expected) = (dump.read(), expected(dump.output_pipe));
    let check = |images: &BTreeMap<String, Vec<u8>>| {
        let borrowed: Images<'_> = images.iter().map(|(n, b)| (n.as_str(), b.as_slice())).collect();
        verify_images(&borrowed, &expected)
    };
    let whole = check(&images).unwrap();
    let rights = Rights::of(&whole);
    let paths: BTreeSet<&OpenedPath> = whole.opened_paths().collect();
    let (mut refused, mut taken) = (0, 0);
    for (name, bytes) in &images {
        let has_data = ["pipes-data.img", "fifo-data.img", "sk-queues.img", "stats-dump"].contains(&name.as_str());
        if bytes.is_empty() || has_data || name.starts_with("ghost") {
            continue;
        }
        for mutation in mutate::all(name, bytes) {
            let mut changed = images.clone();
            changed.insert(name.clone(), mutation.image);
            match check(&changed) {
                Err(_) => refused += 1,
                Ok(verified) => {
                    taken += 1;
                    let what = format!("{name} entry {} field {:?}", mutation.entry, mutation.field);
                    assert!(Rights::of(&verified).within(&rights), "{what}");
                    let now: BTreeSet<&OpenedPath> = verified.opened_paths().collect();
                    let is_of_files = name == "files.img" || name == "remap-fpath.img";
                    let uses = name.starts_with("mm-") || name.starts_with("fs-") || name.starts_with("fdinfo-");
                    // Where more is opened than was, it is told; and only what says which files there are can do it.
                    assert!(is_of_files || uses || now == paths, "{what}");
                }
            }
        }
    }
    println!("{refused} refused, {taken} taken");
    assert!(refused > taken, "{refused} {taken}");
}

//! The other way back from a checkpoint, as an oracle: stock CRIU restores what stock CRIU dumped, eagerly, with all
//! memory from its own images. No page map, chunk, template or pager of ours is involved.
//!
//! ```text
//! deploy ──criu dump──> image directory ──publish──> store ──> lazy restore by the platform ──┐
//!            (copied while the store holds the publish)                                       ├─ compared
//!                            └──> criu restore, no lazy pages, in a sandbox of its own ───────┘
//! ```

use std::fs::{self, File};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::sched::{CloneFlags, setns};
use rekindle_criu::descriptors::OUTPUT_FDS;
use rekindle_criu::images::{ClockTimes, clock_times};
use rekindle_criu::{InheritFd, RESTORE_LOG, RestoreOrder, Session, Stage};
use rekindle_init::protocol::{Clocks, FUNCTION_PID, Layers, Machine, Setup, held_path};
use rekindle_snapshotter::interchange::export;
use rekindle_snapshotter::manifest::Origin;
use rekindle_snapshotter::{Manifest, Snapshot};
use rekindle_wire::api::VersionInfo;
use rekindle_worker::host::cgroup::{CGROUP_ROOT, Cgroup, Cgroups, Limits};
use rekindle_worker::host::sandbox::{CriuUse, FunctionState, Sandbox, Zygote};
use rekindle_worker::snapshots::{CaptureNotes, FILES_ARCHIVE, NOTES_FILE};
use tempfile::TempDir;

use crate::s3::ObjectStore;
use crate::{Platform, RUNTIME, binaries, first_instruction, host, until};

const CRIU: &str = "/usr/local/lib/rekindle/criu/criu";
const LIMIT: Duration = Duration::from_secs(30);
/// Where a function listens unless its `fn.toml` has another port.
const PORT: u16 = 8080;
const TMPFS_BYTES: u64 = 64 << 20;
const MEMORY_BYTES: u64 = 4 << 30;

/// The images that a worker keeps in memory, which only its own mount namespace sees.
pub fn images_in_memory(platform: &Platform) -> Vec<PathBuf> {
    let images = platform.directory("run").join("worker/images");
    let seen = PathBuf::from(format!("/proc/{}/root{}", platform.pid(), images.display()));
    fs::read_dir(&seen).unwrap().map(|e| e.unwrap().path()).collect()
}

/// Those that are directories into which a deploy in progress dumps.
pub fn dumps_of(images: Vec<PathBuf>) -> Vec<PathBuf> {
    let is_dump = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("dump-");
    images.into_iter().filter(is_dump).collect()
}

/// A copy of the one image directory that a deploy in progress has dumped into memory.
///
/// # Panics
/// If there is none, or more than one.
pub fn copy_dump(platform: &Platform) -> TempDir {
    let dumps = dumps_of(images_in_memory(platform));
    assert_eq!(dumps.len(), 1, "{dumps:?}");
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(&dumps[0]).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    assert!(copy.path().join(NOTES_FILE).exists(), "the dump is not whole");
    copy
}

/// What stock CRIU restores a version from: its snapshot's images, written to a directory.
pub struct Exported {
    /// Of the snapshot.
    pub manifest: Manifest,
    /// The directory.
    pub images: PathBuf,
    _place: TempDir,
}

impl Exported {
    /// Exports the snapshot of `version`, which `store` has.
    ///
    /// # Panics
    /// If there is none, or it cannot be read.
    pub fn of(store: &ObjectStore, version: &VersionInfo) -> Self {
        let (client, id) = (store.client(), &version.snapshot.as_ref().unwrap().id);
        let place = tempfile::tempdir().unwrap();
        let images = place.path().join("exported");
        let manifest = RUNTIME.block_on(async {
            export(&client, id, &images).await.unwrap();
            Snapshot::open(&client, id).await.unwrap().manifest
        });
        Self {
            manifest,
            images,
            _place: place,
        }
    }
}

/// The clocks of the processes at their checkpoint, as its images say.
///
/// # Panics
/// If they do not.
pub fn clocks_of(images: &Path) -> ClockTimes {
    clock_times(&fs::read(images.join("timens-0.img")).unwrap()).unwrap()
}

/// Processes restored eagerly, in a sandbox of their own; killed when dropped.
pub struct Eager {
    sandbox: Arc<Sandbox>,
    _group: Group,
    _outputs: [(OwnedFd, OwnedFd); 2],
}

/// A sandbox's control group, whose files programs may have open. It goes after the sandbox.
struct Group {
    group: Option<Cgroup>,
    all: Cgroups,
}

impl Group {
    fn create() -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let parent = format!("rekindle-eager-{}-{number}", std::process::id());
        let all = Cgroups::detect_below(Path::new(CGROUP_ROOT), &parent).unwrap();
        let limits = Limits {
            memory_bytes: MEMORY_BYTES,
            cpu_cores: 2.0,
            pids: 2_000,
        };
        let group = all.create("eager", limits).unwrap();
        Self {
            group: Some(group),
            all,
        }
    }

    fn files(&self) -> Vec<PathBuf> {
        self.group.as_ref().map(Cgroup::procs_files).unwrap_or_default()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        drop(self.group.take());
        if let Err(error) = self.all.remove_parent() {
            eprintln!("a control group stays: {error}");
        }
    }
}

impl Eager {
    /// Restores the dump in `images`, from which the snapshot with this `manifest` was made, over the files that the
    /// worker of `platform` has unpacked.
    ///
    /// # Panics
    /// If it cannot be restored.
    pub fn restore(platform: &Platform, manifest: &Manifest, images: &Path) -> Self {
        let restored = Self::try_restore(platform, manifest, images, LIMIT);
        restored.unwrap_or_else(|told| panic!("{told}"))
    }

    /// The same, with each thread stopped by a signal before its first instruction.
    ///
    /// # Panics
    /// If it cannot be restored.
    pub fn restore_stopped(platform: &Platform, manifest: &Manifest, images: &Path) -> Self {
        let eager = Self::restored(platform, manifest, images, LIMIT, first_instruction::stop);
        let eager = eager.unwrap_or_else(|told| panic!("{told}"));
        until("the copy of stock CRIU, stopped", LIMIT, || {
            let mut processes = eager.processes().into_values();
            processes.all(host::is_stopped).then_some(())
        });
        eager
    }

    /// Restores images that CRIU may refuse, within this time.
    ///
    /// # Errors
    /// CRIU's error.
    pub fn try_restore(
        platform: &Platform,
        manifest: &Manifest,
        images: &Path,
        limit: Duration,
    ) -> Result<Self, String> {
        Self::restored(platform, manifest, images, limit, |_| {})
    }

    /// Calls `before_resume` for each process while CRIU keeps all from running.
    fn restored(
        platform: &Platform,
        manifest: &Manifest,
        images: &Path,
        limit: Duration,
        before_resume: impl Fn(i32),
    ) -> Result<Self, String> {
        let layers = platform.directory("cache").join("worker/layers");
        let Origin::Function {
            function,
            rootfs,
            layer,
            ..
        } = &manifest.origin
        else {
            panic!("{} was imported", manifest.id);
        };
        let layers = Layers {
            rootfs: layers.join(&rootfs.digest),
            app: layers.join(&layer.digest),
        };
        let setup = Setup {
            hostname: function.to_string(),
            tmp_bytes: TMPFS_BYTES,
            shm_bytes: TMPFS_BYTES,
            root_bytes: None,
            resolv_conf: None,
            secrets: false,
            machine: Machine {
                memory_bytes: TMPFS_BYTES,
                processors: 1,
            },
        };
        let notes = CaptureNotes::read(images).unwrap();
        let outputs = [(); 2].map(|()| nix::unistd::pipe2(OFlag::O_CLOEXEC).unwrap());
        let (session, theirs) = Session::pair().unwrap();
        let directory = OwnedFd::from(File::open(images).unwrap());
        let times = clocks_of(images);
        let signed = |(seconds, nanoseconds): (u64, u64)| (seconds.cast_signed(), nanoseconds.cast_signed());
        let clocks = Clocks {
            monotonic: signed(times.monotonic),
            boottime: signed(times.boottime),
        };
        let group = Group::create();
        let (sandbox, session) = RUNTIME.block_on(async {
            let init = binaries::directory().join("rekindle-init");
            let stage = tempfile::tempdir().unwrap();
            let criu = criu().parent().unwrap().to_owned();
            let zygote = Arc::new(Zygote::new(init, stage.path().to_owned(), criu));
            let sandbox = Sandbox::create(&zygote, group.files()).await.unwrap();
            sandbox.furnish(layers, setup).await.unwrap();
            // CRIU is the sandbox's root, and nobody here.
            let root = Some(sandbox.host_id(0));
            for (_, write) in &outputs {
                std::os::unix::fs::fchown(write, root, root).unwrap();
            }
            std::os::unix::fs::chown(images, root, root).unwrap();
            // An earlier restore's log belongs to the root of another sandbox.
            match fs::remove_file(images.join(RESTORE_LOG)) {
                Err(error) if error.kind() != ErrorKind::NotFound => panic!("{error}"),
                _ => {}
            }
            for entry in fs::read_dir(images).unwrap() {
                fs::set_permissions(entry.unwrap().path(), fs::Permissions::from_mode(0o644)).unwrap();
            }
            let archive = OwnedFd::from(File::open(images.join(FILES_ARCHIVE)).unwrap());
            sandbox.load_files(&archive).await.unwrap();
            let fds = [&theirs, &outputs[0].1, &outputs[1].1];
            // Nothing of it is frozen.
            sandbox.start_criu(&fds, CriuUse::Alone).await.unwrap();
            drop(theirs);
            let session = tokio::task::spawn_blocking(move || session.version(LIMIT).map(|_| session));
            let session = session.await.unwrap().unwrap();
            drop(sandbox.ancestor().await.unwrap());
            sandbox.hold(&[&directory], Some(clocks), false).await.unwrap();
            (sandbox, session)
        });
        let inherit = OUTPUT_FDS
            .into_iter()
            .zip(["stdout", "stderr"])
            .map(|(fd, stream)| InheritFd {
                key: notes.pipes.iter().find(|n| n.stream == stream).unwrap().key.clone(),
                fd,
            });
        let order = RestoreOrder {
            images_dir: held_path(0),
            inherit: inherit.collect(),
            log_level: 2,
            limit,
        };
        // Whatever the outcome, nothing of it keeps running.
        let eager = Self {
            sandbox,
            _group: group,
            _outputs: outputs,
        };
        let restored = session.restore(&order, |stage| match stage {
            Stage::PreResume => {
                let own = eager
                    .processes()
                    .into_iter()
                    .filter(|(inner, _)| *inner >= FUNCTION_PID);
                own.for_each(|(_, pid)| before_resume(pid));
                Ok(RUNTIME.block_on(eager.sandbox.follow_links())?)
            }
            _ => Ok(()),
        });
        match restored {
            Ok(FUNCTION_PID) => {
                // CRIU ends once nobody talks to it, and has rights that no copy has.
                drop(session);
                until("the end of criu", LIMIT, || {
                    eager.processes().keys().all(|pid| *pid >= FUNCTION_PID).then_some(())
                });
                Ok(eager)
            }
            other => Err(format!(
                "{other:?}\n{}",
                fs::read_to_string(images.join(RESTORE_LOG)).unwrap_or_default()
            )),
        }
    }

    /// Requests a path of the restored function, from within its network namespace. Returns the body.
    ///
    /// # Panics
    /// If it does not answer 200.
    pub fn get(&self, path: &str) -> Vec<u8> {
        let network = File::open(format!("/proc/{}/ns/net", self.sandbox.init_pid())).unwrap();
        let request = format!("GET {path} HTTP/1.0\r\nhost: function\r\nconnection: close\r\n\r\n");
        // A thread of its own, which ends in that namespace.
        let asking = thread::spawn(move || {
            setns(network, CloneFlags::CLONE_NEWNET).unwrap();
            let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, PORT)).unwrap();
            connection.set_read_timeout(Some(LIMIT)).unwrap();
            connection.write_all(request.as_bytes()).unwrap();
            let mut answer = Vec::new();
            connection.read_to_end(&mut answer).unwrap();
            answer
        });
        let mut answer = asking.join().unwrap();
        let head = answer.windows(4).position(|w| w == b"\r\n\r\n").expect("a head") + 4;
        let body = answer.split_off(head);
        let head = String::from_utf8_lossy(&answer);
        assert_eq!(head.split_whitespace().nth(1), Some("200"), "{head}");
        body
    }

    /// How its first process ended, if it did.
    pub fn ended(&self) -> FunctionState {
        *self.sandbox.function_state().borrow()
    }

    /// Its processes by their pids inside, as [`host::processes`] returns an instance's.
    pub fn processes(&self) -> std::collections::BTreeMap<i32, i32> {
        host::descendants(self.sandbox.init_pid().as_raw())
    }
}

impl Drop for Eager {
    fn drop(&mut self) {
        self.sandbox.end();
    }
}

/// The CRIU that the platforms under test use too.
fn criu() -> PathBuf {
    let path = std::env::var_os("FN_CRIU").map_or_else(|| PathBuf::from(CRIU), PathBuf::from);
    let runs = Command::new(&path)
        .arg("--version")
        .output()
        .is_ok_and(|o| o.status.success());
    assert!(runs, "{}: cannot be run: run scripts/setup.sh host", path.display());
    path
}

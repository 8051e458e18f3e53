//! S3 servers for tests: ours in the test's process, and others as processes of its own. What a store must do is what
//! they all do.
//!
//! Each is built by a script of its own and named by a variable. A test that has none is skipped and says so. That is a
//! failure where all must run (`REKINDLE_REQUIRE_ALL=1`).

#![allow(clippy::unwrap_used, reason = "for tests, which end at the first surprise")]

mod testing;

use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

pub use testing::{TestStore, Wire, config, impatient, noise, other_server};

/// How long one may take until it takes requests.
const START_LIMIT: Duration = Duration::from_secs(30);
/// The key that MinIO encrypts with: its name, and 32 bytes in base64.
const MASTER_KEY: &str = "rekindle-tests:bWFzdGVyLWtleS1vZi10aGUtdGVzdHMtMzItYnl0ZXM=";

/// Ports that the kernel gives to nobody by itself, and nothing usual listens at.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// Returns an address with a port that is free, and that no connection gets meanwhile.
///
/// # Panics
/// If there is none.
pub fn free_address(at: impl Into<IpAddr>) -> SocketAddr {
    let at = at.into();
    // Tests run at the same time: each begins elsewhere.
    let first = RandomState::new().hash_one(std::process::id());
    let ports = PORTS.len() as u64;
    let mut ports = (0..ports).map(|n| PORTS.start + u16::try_from(first.wrapping_add(n) % ports).unwrap());
    let port = ports.find(|port| TcpListener::bind((at, *port)).is_ok());
    SocketAddr::new(at, port.expect("a free port"))
}

/// Starts a program from a thread that lasts until what is returned beside it is dropped. A parent-death signal is tied
/// to the thread that started the program, and tests' threads end early.
///
/// # Panics
/// If it cannot be started.
pub fn spawn_for_owner(mut command: Command) -> (Child, mpsc::SyncSender<()>) {
    let (started, child) = mpsc::sync_channel(1);
    let (starter, end) = mpsc::sync_channel(1);
    thread::spawn(move || {
        started.send(command.spawn().unwrap()).unwrap();
        // Until the owner is dropped.
        let _gone: Result<(), _> = end.recv();
    });
    (child.recv().unwrap(), starter)
}

/// Which server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// versitygw over a directory. It does not encrypt.
    Versitygw,
    /// MinIO with a master key: it encrypts what is asked for, or what a bucket asks for.
    Minio,
}

impl Kind {
    /// The name of the key that it encrypts with, as a client gives it.
    pub const ENCRYPTION_KEY: &str = "rekindle-tests";

    fn variable(self) -> &'static str {
        match self {
            Self::Versitygw => "REKINDLE_VERSITYGW",
            Self::Minio => "REKINDLE_MINIO",
        }
    }

    fn command(self, binary: &Path, data: &Path, address: SocketAddr, (key, secret): (&str, &str)) -> Command {
        // A test that is killed takes it along.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(binary);
        match self {
            Self::Versitygw => {
                command
                    .args(["--access", key, "--secret", secret, "--quiet", "--port"])
                    .arg(address.to_string())
                    .arg("posix");
            }
            Self::Minio => {
                command
                    .args(["server", "--quiet", "--address"])
                    .arg(address.to_string())
                    .envs([("MINIO_ROOT_USER", key), ("MINIO_ROOT_PASSWORD", secret)])
                    .envs([("MINIO_KMS_SECRET_KEY", MASTER_KEY), ("MINIO_BROWSER", "off")])
                    // It would look for newer releases.
                    .env("MINIO_UPDATE", "off");
            }
        }
        command.arg(data);
        command
    }
}

/// A running server with no bucket yet. Dropping it stops it and removes what it kept.
pub struct Server {
    kind: Kind,
    address: SocketAddr,
    child: Child,
    root: TempDir,
    // The parent-death signal is tied to the thread that started the child, and tests' threads end early.
    _starter: mpsc::SyncSender<()>,
}

impl Server {
    /// Starts one at a free port of this address of the caller's network namespace, with one user. `None`: skipped, and
    /// said so.
    ///
    /// # Panics
    /// When it does not start, or there is none although all must run.
    pub fn start(kind: Kind, at: impl Into<IpAddr>, user: (&str, &str)) -> Option<Self> {
        let Some(binary) = std::env::var_os(kind.variable()).map(PathBuf::from) else {
            let reason = format!(
                "{} names no binary; scripts/install-s3-server.sh builds one",
                kind.variable()
            );
            assert!(std::env::var("REKINDLE_REQUIRE_ALL").as_deref() != Ok("1"), "{reason}");
            println!("skipped: {reason}");
            return None;
        };
        let root = tempfile::tempdir().unwrap();
        let data = root.path().join("data");
        fs::create_dir(&data).unwrap();
        // It cannot be handed a socket.
        let address = free_address(at);
        let log = fs::File::create(root.path().join("log")).unwrap();
        let mut command = kind.command(&binary, &data, address, user);
        command
            .current_dir(root.path())
            .env("HOME", root.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        let (child, starter) = spawn_for_owner(command);
        let mut server = Self {
            kind,
            address,
            child,
            root,
            _starter: starter,
        };
        server.until_it_answers();
        Some(server)
    }

    fn until_it_answers(&mut self) {
        let end = Instant::now() + START_LIMIT;
        while !(self.answers() && self.stays()) {
            let ended = self.child.try_wait().unwrap();
            if ended.is_some() || Instant::now() > end {
                let log = fs::read_to_string(self.root.path().join("log")).unwrap_or_default();
                panic!(
                    "{:?} does not answer at {} ({ended:?}):\n{log}",
                    self.kind, self.address
                );
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Whether it is this server that answers: one whose port another took a moment before ends at once.
    fn stays(&mut self) -> bool {
        thread::sleep(Duration::from_millis(100));
        self.child.try_wait().unwrap().is_none()
    }

    /// MinIO listens before it is ready.
    fn answers(&self) -> bool {
        use std::io::{Read as _, Write as _};
        let Ok(mut stream) = TcpStream::connect(self.address) else {
            return false;
        };
        if self.kind == Kind::Versitygw {
            return true;
        }
        let request = format!(
            "GET /minio/health/cluster HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n",
            self.address
        );
        let mut answer = String::new();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        stream.write_all(request.as_bytes()).is_ok()
            && stream.read_to_string(&mut answer).is_ok()
            && answer.starts_with("HTTP/1.1 200")
    }

    /// Where it takes requests.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The same as a URL.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A directory that lives as long as the server.
    pub fn scratch(&self) -> &Path {
        self.root.path()
    }

    /// All files that it keeps objects in, one after the other.
    pub fn kept(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut folders = vec![self.root.path().join("data")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
                if entry.file_type().unwrap().is_dir() {
                    folders.push(entry.path());
                } else {
                    bytes.extend(fs::read(entry.path()).unwrap());
                }
            }
        }
        bytes
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended.
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}

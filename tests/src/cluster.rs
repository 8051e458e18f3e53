//! A platform of one process for each role, each in directories of its own as on a machine of its own, started by the
//! commands in docs/operations.md with the addresses replaced.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::platform::parking::Parked;
use crate::{Client, binaries, leftovers, until};

const LIMIT: Duration = Duration::from_secs(60);
const GUIDE: &str = include_str!("../../docs/operations.md");
/// The addresses in the guide, in the order of [`Role`], and that of its S3 server.
const ADDRESSES: [&str; 3] = ["10.0.0.1:8081", "10.0.0.2:8082", "10.0.0.3:8080"];
const S3: &str = "http://10.0.0.9:9000";

/// A role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// `fn scheduler`.
    Scheduler,
    /// `fn worker`.
    Worker,
    /// `fn gateway`.
    Gateway,
}

impl Role {
    /// In the order in which they are started.
    pub const ALL: [Self; 3] = [Self::Scheduler, Self::Worker, Self::Gateway];

    fn name(self) -> &'static str {
        match self {
            Self::Scheduler => "scheduler",
            Self::Worker => "worker",
            Self::Gateway => "gateway",
        }
    }
}

/// The platform. Dropping it kills it.
pub struct Cluster {
    root: TempDir,
    endpoint: String,
    credentials: Vec<(String, String)>,
    ports: [u16; 3],
    client: Client,
    running: BTreeMap<Role, Parked>,
}

impl std::ops::Deref for Cluster {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Cluster {
    /// Starts one on an S3 server, as the guide says, and waits until it is ready.
    ///
    /// # Panics
    /// When a role does not come up.
    pub fn start(endpoint: String, credentials: Vec<(String, String)>) -> Self {
        let root = tempfile::Builder::new().prefix("rk").tempdir().unwrap();
        let listeners = ADDRESSES.map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        let ports = listeners.map(|l| l.local_addr().unwrap().port());
        let client = Client::new(
            format!("http://127.0.0.1:{}", ports[Role::Gateway as usize]),
            root.path().join("gateway/data/admin.key"),
            Role::ALL.map(|r| root.path().join(r.name()).join("log")).to_vec(),
        );
        for role in Role::ALL {
            fs::create_dir_all(root.path().join(role.name()).join("cache")).unwrap();
        }
        std::os::unix::fs::symlink(binaries::runtimes(), root.path().join("worker/cache/runtimes")).unwrap();
        let mut cluster = Self {
            root,
            endpoint,
            credentials,
            ports,
            client,
            running: BTreeMap::new(),
        };
        cluster.restart(Role::Scheduler);
        let token = cluster.directory(Role::Scheduler, "data").join("cluster.token");
        for role in [Role::Worker, Role::Gateway] {
            let data = cluster.directory(role, "data");
            fs::create_dir(&data).unwrap();
            fs::copy(&token, data.join("cluster.token")).unwrap();
        }
        let imported = cluster.command(Role::Worker, "fn runtimes import").status().unwrap();
        assert!(imported.success(), "{}", cluster.log_tail(30));
        cluster.restart(Role::Worker);
        cluster.restart(Role::Gateway);
        cluster
    }

    /// Starts a role (again) and waits until the platform can use it.
    ///
    /// # Panics
    /// When it does not come up.
    #[track_caller]
    pub fn restart(&mut self, role: Role) {
        let parked = Parked::start(self.command(role, &format!("fn {}", role.name())));
        assert!(self.running.insert(role, parked).is_none(), "{role:?} runs already");
        let port = self.ports[role as usize];
        until(&format!("{role:?} listens"), LIMIT, || {
            let ended = self.running.get_mut(&role).unwrap().child.try_wait().unwrap();
            assert_eq!(ended, None, "{role:?} ended:\n{}", self.client.log_tail(60));
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()
        });
        if self.running.len() == Role::ALL.len() {
            until("a worker that reports", LIMIT, || {
                let ready = self.request("GET", "/readyz").try_send().is_ok_and(|a| a.status == 200);
                let status = self
                    .admin("GET", "/v1/status")
                    .try_send()
                    .ok()
                    .filter(|s| ready && s.status == 200);
                let alive = status.is_some_and(|s| {
                    s.json()["workers"]
                        .as_array()
                        .unwrap()
                        .iter()
                        .any(|w| w["alive"] == true)
                });
                alive.then_some(())
            });
        }
    }

    /// The command of the guide that begins like this, with these processes' addresses and directories.
    fn command(&self, role: Role, beginning: &str) -> Command {
        let line = GUIDE.lines().find(|l| l.starts_with(&format!("{beginning} ")));
        let mut line = line
            .unwrap_or_else(|| panic!("docs/operations.md has no line \"{beginning} …\""))
            .to_owned();
        for (address, port) in ADDRESSES.iter().zip(self.ports) {
            line = line.replace(address, &format!("127.0.0.1:{port}"));
        }
        line = line.replace(S3, &self.endpoint);
        assert!(
            !line.contains("10.0.0."),
            "an address of the guide is not known here: {line}"
        );
        let mut words = line.split_whitespace();
        assert_eq!(words.next(), Some("fn"));
        let log = self.root.path().join(role.name()).join("log");
        let log = File::options().create(true).append(true).open(log).unwrap();
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "TERM"])
            .arg(binaries::directory().join("fn"))
            .args(words)
            .env("RUST_LOG", "warn,rekindle=info")
            .env("FN_DATA", self.directory(role, "data"))
            .env("FN_CACHE", self.directory(role, "cache"))
            .env("FN_RUN", self.directory(role, "run"))
            .env(
                "FN_CLUSTER_TOKEN_FILE",
                self.directory(role, "data").join("cluster.token"),
            )
            .env("FN_ADMIN_KEY_FILE", self.directory(role, "data").join("admin.key"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        // As on its machine, the gateway knows nothing of the store.
        if role != Role::Gateway {
            command.envs(self.credentials.iter().map(|(k, v)| (k, v)));
        }
        command
    }

    /// A role's `data`, `cache` or `run`.
    pub fn directory(&self, role: Role, name: &str) -> PathBuf {
        self.root.path().join(role.name()).join(name)
    }

    /// Kills a role, without any chance to clean up.
    #[track_caller]
    pub fn kill9(&mut self, role: Role) {
        self.signal(role, Signal::SIGKILL);
    }

    /// Stops a role in good order.
    ///
    /// # Panics
    /// When it ends with an error, or not in time.
    #[track_caller]
    pub fn stop(&mut self, role: Role) {
        let status = self.signal(role, Signal::SIGTERM);
        assert!(
            status.success(),
            "{role:?} stopped with {status}:\n{}",
            self.log_tail(60)
        );
    }

    #[track_caller]
    fn signal(&mut self, role: Role, signal: Signal) -> ExitStatus {
        let mut parked = self.running.remove(&role).unwrap();
        kill(Pid::from_raw(parked.child.id().cast_signed()), signal).unwrap();
        until(&format!("the end of {role:?}"), LIMIT, || {
            parked.child.try_wait().unwrap()
        })
    }

    /// What is left of a stopped platform; nothing, if all is well.
    pub fn leftovers(&self) -> Vec<String> {
        let found = Role::ALL.map(|role| leftovers::of(self.root.path(), &self.directory(role, "run")));
        found.concat()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for parked in self.running.values_mut().rev() {
            // A test that failed has said so; this only cleans up.
            let _gone = kill(Pid::from_raw(parked.child.id().cast_signed()), Signal::SIGTERM);
            let _reaped = parked.child.wait();
        }
        if std::thread::panicking() {
            eprintln!("--- the ends of the roles' logs ---\n{}", self.log_tail(60));
        }
    }
}

//! A platform of several hosts, with one process for each role in directories of its own. Each is on a host of its own
//! ([`crate::hub`]), or all are on this one at different addresses of loopback. They are started by the commands in
//! docs/how-to/run-a-cluster.md with the addresses replaced. The first of each role is named by its [`Role`], further
//! ones by [`Role::nth`].

mod place;
mod size;

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::Signal;
use rekindle_wire::api::WorkerInfo;
use tempfile::TempDir;

use self::place::ADDRESSES;
pub use self::place::{Place, Role};
pub use self::size::Size;
use crate::binaries::{self, Programs};
use crate::child::{self, Parked, STOP_LIMIT};
use crate::hub::{self, Host};
use crate::{Client, imported, leftovers, until};

const LIMIT: Duration = Duration::from_secs(90);
const GUIDE: &str = include_str!("../../docs/how-to/run-a-cluster.md");
/// The address of the S3 server in the guide.
const S3: &str = "http://10.0.0.9:9000";
/// Where its gateway takes calls of functions.
const FUNCTIONS: &str = "10.0.0.3:8083";
const FUNCTIONS_PORT: u16 = 8083;

/// The platform. Dropping it stops it.
pub struct Cluster {
    root: TempDir,
    endpoint: String,
    credentials: Vec<(String, String)>,
    size: Size,
    subnet: String,
    programs: Programs,
    /// Without a host: on this one.
    hosts: BTreeMap<Place, Option<Host>>,
    clients: Vec<Client>,
    running: BTreeMap<Place, Parked>,
    /// When a role was last started.
    launched: Instant,
}

impl std::ops::Deref for Cluster {
    type Target = Client;

    /// The first gateway's client.
    fn deref(&self) -> &Client {
        &self.clients[0]
    }
}

impl Cluster {
    /// Starts one of each role on an S3 server, as the guide says, and waits until the platform is ready. Puts the
    /// calling thread into the hub.
    ///
    /// # Panics
    /// If a role does not come up.
    pub fn start(endpoint: String, credentials: Vec<(String, String)>) -> Self {
        Self::start_sized(endpoint, credentials, Size::default())
    }

    /// Starts a platform of this size in the same way.
    ///
    /// # Panics
    /// If a role does not come up.
    pub fn start_sized(endpoint: String, credentials: Vec<(String, String)>, size: Size) -> Self {
        let programs = Programs::find(size.programs.as_deref()).unwrap_or_else(|e| panic!("{e:#}"));
        let root = tempfile::Builder::new().prefix("rk").tempdir().unwrap();
        let subnet = match size.on_this_host {
            // Processes have different numbers, so two such platforms seldom meet.
            true => format!("127.77.{}", std::process::id() % 250),
            false => hub::subnet(),
        };
        if !size.on_this_host {
            hub::enter();
        }
        let several = |role: Role, count: u8| (0..count).map(move |n| role.nth(n));
        let mut places: Vec<Place> = several(Role::Scheduler, size.schedulers).collect();
        places.extend(several(Role::Worker, size.workers));
        places.extend(several(Role::Gateway, size.gateways));
        let directory = |place: &Place| root.path().join(place.name());
        for place in &places {
            fs::create_dir_all(directory(place).join("cache")).unwrap();
            fs::create_dir(directory(place).join("data")).unwrap();
        }
        for (place, mib) in &size.disks {
            let (none, flags) = (None::<&str>, MsFlags::empty());
            let options = format!("size={mib}m");
            mount(
                none,
                &directory(place).join("cache"),
                Some("tmpfs"),
                flags,
                Some(&*options),
            )
            .unwrap();
        }
        let logs: Vec<PathBuf> = places.iter().map(|p| directory(p).join("log")).collect();
        let address = |place: &Place| format!("{subnet}.{}", place.last());
        let host = |place: &Place| (!size.on_this_host).then(|| Host::new(address(place).parse().unwrap()));
        let hosts: BTreeMap<Place, Option<Host>> = places.iter().map(|p| (*p, host(p))).collect();
        let client = |place: Place| {
            let url = format!("http://{}:{}", address(&place), Role::Gateway.port());
            let key = directory(&place).join("data/admin.key");
            Client::new(programs.clone(), url, key, logs.clone())
        };
        let clients = several(Role::Gateway, size.gateways).map(client).collect();
        let link = directory(&Role::Worker.nth(0)).join("cache/runtimes");
        let runtimes = size.runtimes.as_deref().unwrap_or_else(|| binaries::runtimes());
        std::os::unix::fs::symlink(runtimes, link).unwrap();
        if size.programs.is_none() && size.runtimes.is_none() {
            let cache = directory(&Role::Worker.nth(0)).join("cache");
            imported::fill_cache(&cache).unwrap_or_else(|e| panic!("{e:#}"));
            let own_disk = |place: &Place| size.disks.iter().any(|(of, _)| of == place);
            for place in several(Role::Worker, size.workers).filter(|place| !own_disk(place)) {
                let filled = imported::fill_layers(&directory(&place).join("cache"));
                filled.unwrap_or_else(|e| panic!("{e:#}"));
            }
        }
        let mut cluster = Self {
            root,
            endpoint,
            credentials,
            size,
            subnet,
            programs,
            hosts,
            clients,
            running: BTreeMap::new(),
            launched: Instant::now(),
        };
        if cluster.size.guarded {
            cluster.on_scheduler(&["cluster", "init"]);
        }
        cluster.launch(Role::Scheduler);
        let token = cluster.directory(Role::Scheduler, "data").join("cluster.token");
        for place in &places[1..] {
            let data = cluster.directory(*place, "data");
            // A host that joins receives it.
            if !cluster.size.guarded || place.role == Role::Scheduler {
                fs::copy(&token, data.join("cluster.token")).unwrap();
            }
            if place.role == Role::Scheduler {
                let made = cluster.directory(Role::Scheduler, "data").join("master.key");
                // None with a key service.
                if made.exists() {
                    fs::copy(made, data.join("master.key")).unwrap();
                }
            }
            if cluster.size.guarded && place.role == Role::Scheduler {
                fs::create_dir(data.join("cluster")).unwrap();
                for file in ["authority.key", "authority.crt"] {
                    let made = cluster.directory(Role::Scheduler, "data").join("cluster").join(file);
                    fs::copy(made, data.join("cluster").join(file)).unwrap();
                }
            }
        }
        cluster.import_runtimes();
        for place in &places[1..] {
            cluster.launch(*place);
            let first = cluster.directory(Role::Gateway, "data").join("admin.key");
            if place.role == Role::Gateway && place.number == 0 {
                for other in several(Role::Gateway, cluster.size.gateways).skip(1) {
                    fs::copy(&first, cluster.directory(other, "data").join("admin.key")).unwrap();
                }
            }
        }
        cluster.until_ready();
        cluster
    }

    /// The output of `fn` on the scheduler's host, with its data.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn on_scheduler(&self, args: &[&str]) -> String {
        let mut command = Command::new(self.programs.cli());
        let command = command
            .args(args)
            .env("FN_DATA", self.directory(Role::Scheduler, "data"));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// A token for the first start of a role.
    fn join_token(&self, place: Place) -> Option<String> {
        let is_new = !self.directory(place, "data").join("identity").exists();
        let joins = self.size.guarded && place.role != Role::Scheduler && is_new;
        joins.then(|| self.on_scheduler(&["cluster", "token", "--role", place.role.name()]))
    }

    fn import_runtimes(&self) {
        let command = self.command(Role::Worker.nth(0), "fn runtimes import");
        let namespace = self.hosts[&Role::Worker.nth(0)].as_ref().map(Host::namespace);
        let status = Parked::start(namespace, command).unwrap().child.wait().unwrap();
        assert!(status.success(), "{}", self.log_tail(30));
    }

    /// Starts a role (again) and waits until the platform can use it.
    ///
    /// # Panics
    /// If it does not come up.
    #[track_caller]
    pub fn restart(&mut self, place: impl Into<Place>) {
        self.launch(place);
        if self.running.len() == self.hosts.len() {
            self.until_ready();
        }
    }

    /// Sets an environment variable of a process, from its next start on.
    pub fn set_env(&mut self, place: impl Into<Place>, name: &str, value: &str) {
        self.size.env.push((place.into(), name.to_owned(), value.to_owned()));
    }

    /// Starts a role (again) and waits until it listens.
    ///
    /// # Panics
    /// If it does not.
    #[track_caller]
    pub fn launch(&mut self, place: impl Into<Place>) {
        let place = place.into();
        let mut command = self.command(place, &format!("fn {}", place.role.name()));
        if let Some(token) = self.join_token(place) {
            command.env("FN_JOIN", token);
        }
        let namespace = self.hosts[&place].as_ref().map(Host::namespace);
        let parked = Parked::start(namespace, command).unwrap();
        self.launched = Instant::now();
        let at = self.address(place).parse().unwrap();
        assert!(self.running.insert(place, parked).is_none(), "{place:?} runs already");
        until(&format!("{place:?} listens"), LIMIT, || {
            let ended = self.running.get_mut(&place).unwrap().child.try_wait().unwrap();
            assert_eq!(ended, None, "{place:?} ended:\n{}", self.clients[0].log_tail(60));
            TcpStream::connect_timeout(&at, Duration::from_secs(1)).ok()
        });
    }

    /// Waits until every running gateway is ready, and every running worker is alive.
    #[track_caller]
    pub fn until_ready(&self) {
        let workers = self.running.keys().filter(|p| p.role == Role::Worker).count();
        for place in self.running.keys().filter(|p| p.role == Role::Gateway) {
            let client = self.gateway(place.number);
            until(&format!("{place:?} ready, {workers} workers alive"), LIMIT, || {
                let ready = client.request("GET", "/readyz").try_send().ok()?.status == 200;
                (ready && self.alive() == Some(workers)).then_some(())
            });
        }
    }

    /// Number of workers that are alive, and were heard from since a role was last started; `None` if no gateway
    /// answers.
    fn alive(&self) -> Option<usize> {
        let workers = self.try_workers()?;
        let heard = |w: &&WorkerInfo| u128::from(w.heartbeat_age_ms) < self.launched.elapsed().as_millis();
        Some(workers.iter().filter(|w| w.alive).filter(heard).count())
    }

    /// The workers as a gateway reports them; `None` if none does.
    pub fn try_workers(&self) -> Option<Vec<WorkerInfo>> {
        let answers = self
            .clients
            .iter()
            .filter_map(|c| c.admin("GET", "/v1/status").try_send().ok());
        let answer = answers.into_iter().find(|a| a.status == 200)?;
        serde_json::from_value(answer.json()["workers"].clone()).ok()
    }

    /// A worker as the scheduler knows it.
    ///
    /// # Panics
    /// If the scheduler does not know it.
    #[track_caller]
    pub fn worker(&self, number: u8) -> WorkerInfo {
        let address = self.address(Role::Worker.nth(number));
        let all = self.try_workers().expect("no gateway answers");
        let found = all.iter().find(|w| w.address == address);
        found
            .unwrap_or_else(|| panic!("no worker at {address}: {all:?}"))
            .clone()
    }

    /// The command of the guide that begins like this, with these processes' addresses and directories.
    fn command(&self, place: Place, beginning: &str) -> Command {
        let line = GUIDE.lines().find(|l| l.starts_with(&format!("{beginning} ")));
        let mut line = line
            .unwrap_or_else(|| panic!("docs/how-to/run-a-cluster.md has no line \"{beginning} …\""))
            .to_owned();
        line = line.replace(S3, &self.endpoint);
        for (address, role) in ADDRESSES.iter().zip(Role::ALL) {
            let there: Vec<String> = match role {
                _ if role == place.role => vec![self.address(place)],
                Role::Scheduler => (0..self.size.schedulers).map(|n| self.address(role.nth(n))).collect(),
                _ => vec![self.address(role)],
            };
            line = line.replace(address, &there.join(","));
        }
        // A gateway's second port is at the address of its first.
        let own = self.address(place);
        let (host, _) = own.rsplit_once(':').unwrap();
        line = line.replace(FUNCTIONS, &format!("{host}:{FUNCTIONS_PORT}"));
        if self.size.guarded {
            line = line.replace("--scheduler ", "--scheduler https://");
        }
        let mut words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        assert_eq!(words.remove(0), "fn");
        if words[0] == place.role.name() {
            let more = self.size.args.iter().filter(|(role, _)| *role == place.role);
            words.extend(more.map(|(_, word)| word.clone()));
        }
        let (own, data) = (self.root.path().join(place.name()), self.directory(place, "data"));
        let mut command = child::command(&self.programs.cli(), &own, &own.join("log")).unwrap();
        command
            .args(words)
            .env("FN_CLUSTER_TOKEN_FILE", data.join("cluster.token"))
            .env("FN_ADMIN_KEY_FILE", data.join("admin.key"));
        // A measured platform logs as one in use.
        if !self.size.on_this_host {
            command.env("RUST_LOG", "warn,rekindle=info");
        }
        // All load of a test comes from one address, which must have no limits of its own.
        command.env("FN_CLIENT_EXEMPT", "0.0.0.0/0");
        // The gateway knows nothing of the store, as on a machine of its own.
        if place.role != Role::Gateway {
            command.envs(self.credentials.iter().map(|(k, v)| (k, v)));
        }
        let own = self.size.env.iter().filter(|(whose, ..)| *whose == place);
        command.envs(own.map(|(_, k, v)| (k, v)));
        command
    }

    /// A role's `data`, `cache` or `run`.
    pub fn directory(&self, place: impl Into<Place>, name: &str) -> PathBuf {
        self.root.path().join(place.into().name()).join(name)
    }

    /// The parent of all directories.
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// The address at which a role listens.
    pub fn address(&self, place: impl Into<Place>) -> String {
        let place = place.into();
        format!("{}.{}:{}", self.subnet, place.last(), place.role.port())
    }

    /// A role's host, which may be cut off and mended.
    pub fn host(&self, place: impl Into<Place>) -> &Host {
        self.hosts[&place.into()].as_ref().expect("a host of its own")
    }

    /// The status of a scheduler's `/readyz`: 200 if it leads. `None` if it does not answer.
    pub fn readiness(&self, scheduler: u8) -> Option<u16> {
        let address = self.address(Role::Scheduler.nth(scheduler));
        let mut command = Command::new("curl");
        command.args(["-s", "-m", "3", "-o", "/dev/null", "-w", "%{http_code}"]);
        if self.size.guarded {
            let identity = self.directory(Role::Gateway, "data").join("identity");
            // Members are known by their roles, which is not what curl looks for in a certificate.
            command.arg("-k").arg(format!("https://{address}/readyz"));
            command.arg("--cert").arg(identity.join("member.crt"));
            command.arg("--key").arg(identity.join("member.key"));
        } else {
            command.arg(format!("http://{address}/readyz"));
        }
        let output = command.output().unwrap();
        let status = String::from_utf8_lossy(&output.stdout).parse().unwrap_or(0);
        // What curl says of no answer.
        (status != 0).then_some(status)
    }

    /// The scheduler that leads, if exactly one does.
    pub fn leader(&self) -> Option<u8> {
        let mut leading = (0..self.size.schedulers).filter(|n| self.readiness(*n) == Some(200));
        let first = leading.next();
        first.filter(|_| leading.next().is_none())
    }

    /// The platform as users of this gateway see it.
    pub fn gateway(&self, number: u8) -> &Client {
        &self.clients[usize::from(number)]
    }

    /// A role's process.
    pub fn pid(&self, place: impl Into<Place>) -> i32 {
        self.running[&place.into()].pid()
    }

    /// Kills a role, without any chance to clean up.
    #[track_caller]
    pub fn kill9(&mut self, place: impl Into<Place>) {
        self.signal(place.into(), Signal::SIGKILL);
    }

    /// Stops a role in an orderly way.
    ///
    /// # Panics
    /// If it ends with an error, or not in time.
    #[track_caller]
    pub fn stop(&mut self, place: impl Into<Place>) {
        let place = place.into();
        let status = self.signal(place, Signal::SIGTERM);
        assert!(
            status.success(),
            "{place:?} stopped with {status}:\n{}",
            self.log_tail(60)
        );
    }

    #[track_caller]
    fn signal(&mut self, place: Place, signal: Signal) -> ExitStatus {
        let status = self.running.remove(&place).unwrap().end(signal);
        status.unwrap_or_else(|| panic!("{place:?} did not end within {STOP_LIMIT:?} of {signal}"))
    }

    /// What is left of a stopped platform; empty if all is well.
    pub fn leftovers(&self) -> Vec<String> {
        let run = |place: &Place| leftovers::of(self.root.path(), &self.directory(*place, "run"));
        self.hosts.keys().flat_map(run).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        while let Some((_, parked)) = self.running.pop_last() {
            // A failed test has reported that; this only cleans up.
            let _ended = parked.end(Signal::SIGTERM);
        }
        for place in self.hosts.keys() {
            leftovers::remove(&self.programs, &self.directory(*place, "run"));
        }
        if std::thread::panicking() {
            eprintln!("--- the ends of the roles' logs ---\n{}", self.log_tail(60));
        }
        for (place, _) in &self.size.disks {
            // Lazily: what a killed worker has left there may be in use.
            let _gone = umount2(&self.directory(*place, "cache"), MntFlags::MNT_DETACH);
        }
    }
}

//! A PostgreSQL server of the tests' own: its files in a temporary directory, on a free port, run by nobody. It ends
//! with its owner, even if that is killed, since it notices the end of a pipe. Also part of the scheduler's unit tests.

use std::hash::{BuildHasher as _, RandomState};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const READY_LIMIT: Duration = Duration::from_secs(60);
/// The superuser's name; loopback is trusted.
const USER: &str = "rekindle";

/// Starts and stops the server on orders, and ends and removes it when its input ends.
const KEEPER: &str = r#"
end() { [ -z "$server" ] || { kill "-$1" "$server"; wait "$server"; server=; }; }
while read -r order; do
    case $order in
    start) "$@" >> "$DIR/log" 2>&1 & server=$! ;;
    crash) end QUIT ;;
    esac
done
end INT
rm -rf "$DIR"
"#;

/// A free port below those that the kernel gives away: nobody else gets it while the server is down.
fn free_port(address: Ipv4Addr) -> u16 {
    const FIRST: u16 = 12_000;
    const COUNT: u64 = 8_000;
    // Tests run at the same time: each begins elsewhere.
    let random = RandomState::new().hash_one(());
    let mut ports = (0..COUNT).map(|n| FIRST + (random.wrapping_add(n) % COUNT) as u16);
    let port = ports.find(|port| TcpListener::bind((address, *port)).is_ok());
    port.expect("a free port")
}

/// A server.
pub struct Postgres {
    address: Ipv4Addr,
    port: u16,
    databases: AtomicU32,
    dir: PathBuf,
    keeper: Child,
    orders: ChildStdin,
}

impl Postgres {
    /// Starts one on loopback.
    pub fn start() -> Option<Self> {
        Self::start_at(Ipv4Addr::LOCALHOST)
    }

    /// Starts one on this address. `None` if PostgreSQL is not installed, which scripts/install-postgres.sh does. With
    /// REKINDLE_REQUIRE_ALL=1 that is a failure.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_at(address: Ipv4Addr) -> Option<Self> {
        let Some(programs) = programs() else {
            let required = std::env::var_os("REKINDLE_REQUIRE_ALL").is_some_and(|v| v == "1");
            assert!(!required, "PostgreSQL is required: run scripts/install-postgres.sh");
            eprintln!("skipped: PostgreSQL is not installed (scripts/install-postgres.sh)");
            return None;
        };
        let dir = tempfile::Builder::new().prefix("rkpg").tempdir().unwrap().keep();
        let is_root = nix::unistd::geteuid().is_root();
        if is_root {
            std::os::unix::fs::chown(&dir, Some(65_534), Some(65_534)).unwrap();
        }
        // It refuses to be run by root.
        let as_nobody = |program: &Path| {
            let prefix: &[&str] = match is_root {
                true => &["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"],
                false => &["env"],
            };
            let mut words: Vec<String> = prefix.iter().map(ToString::to_string).collect();
            words.push(program.display().to_string());
            words
        };
        let data = dir.join("data");
        let made = as_nobody(&programs.join("initdb"));
        let output = Command::new(&made[0])
            .args(&made[1..])
            .args([
                "--no-sync",
                "--auth=trust",
                "--encoding=UTF8",
                "--locale=C",
                &format!("--username={USER}"),
                "-D",
            ])
            .arg(&data)
            .current_dir("/")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut hosts = std::fs::OpenOptions::new()
            .append(true)
            .open(data.join("pg_hba.conf"))
            .unwrap();
        writeln!(hosts, "host all all all trust").unwrap();
        let port = free_port(address);
        let mut keeper = Command::new("sh")
            .args(["-c", KEEPER, "sh"])
            .args(as_nobody(&programs.join("postgres")))
            .arg("-D")
            .arg(&data)
            .args([
                "-p",
                &port.to_string(),
                "-h",
                &address.to_string(),
                "-k",
                "",
                "-c",
                "max_connections=200",
                // A server that is killed loses nothing that the kernel has.
                "-c",
                "fsync=off",
            ])
            .env("DIR", &dir)
            .current_dir("/")
            .stdin(Stdio::piped())
            // Whoever reads the tests' output must not wait for its end.
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let orders = keeper.stdin.take().unwrap();
        let mut server = Self {
            address,
            port,
            databases: AtomicU32::new(0),
            dir,
            keeper,
            orders,
        };
        server.launch();
        Some(server)
    }

    /// Starts the server (again), with the data it has, and waits until it answers.
    ///
    /// # Panics
    /// If it does not.
    pub fn launch(&mut self) {
        self.orders.write_all(b"start\n").unwrap();
        let (programs, end) = (programs().unwrap(), Instant::now() + READY_LIMIT);
        while !self.answers(&programs) {
            let mut log = String::new();
            if Instant::now() > end {
                drop(std::fs::File::open(self.dir.join("log")).and_then(|mut f| f.read_to_string(&mut log)));
                panic!("PostgreSQL does not start: {log}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Ends the server at once, without notice to its clients or a shutdown of its files.
    ///
    /// # Panics
    /// If it continues to answer.
    pub fn crash(&mut self) {
        self.orders.write_all(b"crash\n").unwrap();
        let end = Instant::now() + READY_LIMIT;
        while TcpStream::connect((self.address, self.port)).is_ok() {
            assert!(Instant::now() < end, "PostgreSQL goes on");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn answers(&self, programs: &Path) -> bool {
        TcpStream::connect((self.address, self.port)).is_ok()
            && Command::new(programs.join("pg_isready"))
                .args(["-q", "-h", &self.address.to_string(), "-p", &self.port.to_string()])
                .status()
                .is_ok_and(|s| s.success())
    }

    /// The address of a new, empty database.
    ///
    /// # Panics
    /// If it cannot be created.
    pub fn database(&self) -> String {
        let name = format!("test_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        let server = format!("postgres://{USER}@{}:{}", self.address, self.port);
        let output = Command::new(programs().unwrap().join("psql"))
            .args([
                "-q",
                "-d",
                &format!("{server}/postgres"),
                "-c",
                &format!("CREATE DATABASE {name}"),
            ])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        format!("{server}/{name}")
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // Closing the pipe asks it to end; `orders` is dropped after this, so the keeper is not waited for.
        let _ended = self.keeper.try_wait();
    }
}

/// The directory of the newest version's programs.
fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
    let mut found: Vec<(u32, PathBuf)> = versions
        .filter_map(|v| Some((v.file_name().to_str()?.parse().ok()?, v.path().join("bin"))))
        .filter(|(_, bin)| bin.join("initdb").exists())
        .collect();
    found.sort();
    found.pop().map(|(_, bin)| bin)
}

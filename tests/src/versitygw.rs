//! versitygw, an S3 server that is not ours, as a process of the test's own.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::platform::parking::Parked;
use crate::{s3, until};

const KEY: &str = "tests";
const SECRET: &str = "secret-of-the-tests";

/// A server with no bucket yet. Dropping it stops it.
pub struct Versitygw {
    endpoint: String,
    parked: Parked,
    _root: TempDir,
}

impl Versitygw {
    /// Starts the one that `REKINDLE_VERSITYGW` names, at this address of this machine. `None`: skipped, and said so.
    ///
    /// # Panics
    /// When it does not start, or there is none although `REKINDLE_REQUIRE_ALL=1`.
    pub fn start_at(address: Ipv4Addr) -> Option<Self> {
        let Some(binary) = std::env::var_os("REKINDLE_VERSITYGW").map(PathBuf::from) else {
            let reason = "REKINDLE_VERSITYGW names no binary; scripts/install-versitygw.sh builds one";
            assert!(std::env::var("REKINDLE_REQUIRE_ALL").as_deref() != Ok("1"), "{reason}");
            println!("skipped: {reason}");
            return None;
        };
        let root = tempfile::tempdir().unwrap();
        let data = root.path().join("data");
        fs::create_dir(&data).unwrap();
        // It cannot be handed a socket.
        let probe = TcpListener::bind((address, 0)).unwrap();
        let address = probe.local_addr().unwrap();
        drop(probe);
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL"])
            .arg(binary)
            .args(["--access", KEY, "--secret", SECRET, "--port"])
            .arg(address.to_string())
            .args(["--quiet", "posix"])
            .arg(data)
            .current_dir(root.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let parked = Parked::start(command);
        until("versitygw", Duration::from_secs(30), || {
            TcpStream::connect(address).ok()
        });
        Some(Self {
            endpoint: format!("http://{address}"),
            parked,
            _root: root,
        })
    }

    /// Its address.
    pub fn endpoint(&self) -> String {
        self.endpoint.clone()
    }

    /// The variables with its credentials.
    pub fn environment(&self) -> Vec<(String, String)> {
        s3::environment(KEY, SECRET)
    }
}

impl Drop for Versitygw {
    fn drop(&mut self) {
        // It may have ended.
        let _killed = self.parked.child.kill();
        let _reaped = self.parked.child.wait();
    }
}

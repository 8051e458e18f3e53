//! Services of AWS by moto, a process of its own.

use std::net::{Ipv4Addr, SocketAddr};

use rekindle_s3_servers::free_address;
use tempfile::TempDir;

use crate::owned::{Owned, START_LIMIT, named};
use crate::{Call, until};

pub(crate) const REGION: &str = "us-east-1";

/// The server. Dropping it stops it.
pub(crate) struct Moto {
    address: SocketAddr,
    _dir: TempDir,
    _running: Owned,
}

impl Moto {
    /// Starts one at an address of this machine. `None` if there is none.
    pub(crate) fn start_at(address: Ipv4Addr) -> Option<Self> {
        let program = named("REKINDLE_MOTO_SERVER", "scripts/install-moto.sh")?;
        let dir = tempfile::tempdir().unwrap();
        let start = || {
            let address = free_address(address);
            let (host, port) = (address.ip().to_string(), address.port().to_string());
            let args = ["-H", &host, "-p", &port].map(str::to_owned);
            (address, Owned::start(&program, &args, &[], &dir.path().join("log")))
        };
        let mut started = start();
        let what = format!("moto answers: {}", dir.path().join("log").display());
        until(&what, START_LIMIT, || {
            // Somebody else may have taken the port meanwhile.
            if started.1.has_ended() {
                started = start();
            }
            let answer = Call::get(&format!("http://{}/moto-api/", started.0)).try_send().ok()?;
            answer.text().contains("Moto").then_some(())
        });
        let (address, running) = started;
        Some(Self {
            address,
            _dir: dir,
            _running: running,
        })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A call of a service. Moto reads the credential and checks no signature.
    pub(crate) fn post(&self, path: &str, service: &str) -> Call {
        let key = format!("Credential=test/20260101/{REGION}/{service}/aws4_request");
        let signed = format!("AWS4-HMAC-SHA256 {key}, SignedHeaders=host, Signature=0");
        Call::post(&format!("{}{path}", self.url())).header("authorization", &signed)
    }
}

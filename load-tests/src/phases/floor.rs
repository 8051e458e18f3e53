//! What the parts cannot be below: an exchange over loopback with somebody who does nothing, and the bare start of a process.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result};
use http::Method;
use serde::Serialize;

use crate::client::Connection;

/// Samples of each floor, milliseconds.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Floors {
    /// The function as a process on the host, asked directly.
    pub(super) direct: Vec<f64>,
    /// An HTTP exchange on a kept connection.
    pub(super) hop: Vec<f64>,
    /// The same on a new connection.
    pub(super) connected: Vec<f64>,
    /// A process from its start to its end, which does nothing.
    pub(super) process: Vec<f64>,
}

/// Answers every request with the same few bytes, one thread for each connection.
pub(super) struct Echo {
    port: u16,
    kept: Connection,
}

impl Echo {
    /// Starts it; its threads end with this process.
    pub(super) async fn start() -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port on loopback")?;
        let port = listener.local_addr().context("the port is not known")?.port();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                std::thread::spawn(move || {
                    // Only slower if it fails.
                    let _ = stream.set_nodelay(true);
                    let mut buffer = [0; 4096];
                    // The client sends a request at once, and waits for its answer.
                    while stream.read(&mut buffer).is_ok_and(|n| n > 0) {
                        if stream
                            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                            .is_err()
                        {
                            return;
                        }
                    }
                });
            }
        });
        let kept = Connection::open(port).await?;
        Ok(Self { port, kept })
    }

    /// Milliseconds of an exchange on a kept connection.
    pub(super) async fn exchange(&mut self) -> Result<f64> {
        let began = Instant::now();
        self.kept.call(Method::GET, "/", &[]).await?;
        Ok(ms_since(began))
    }

    /// The same on a new connection.
    pub(super) async fn exchange_anew(&self) -> Result<f64> {
        let began = Instant::now();
        let mut connection = Connection::open(self.port).await?;
        connection.call(Method::GET, "/", &[]).await?;
        Ok(ms_since(began))
    }
}

/// Milliseconds of a process that does nothing.
pub(super) fn process_start() -> Result<f64> {
    let began = Instant::now();
    Command::new("/bin/true")
        .status()
        .context("/bin/true cannot be started")?;
    Ok(ms_since(began))
}

fn ms_since(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1_000.0
}

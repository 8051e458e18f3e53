//! The floor of the parts: an exchange over loopback with a server that does nothing.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::time::Instant;

use anyhow::{Context as _, Result};
use http::Method;

use crate::client::Connection;
use crate::subject::ms_since;

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
                    // If it fails it is only slower.
                    let _ = stream.set_nodelay(true);
                    let mut buffer = [0; 4096];
                    // The client sends a request at once, and waits for its response.
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

    /// Milliseconds of an exchange on a new connection.
    pub(super) async fn exchange_anew(&self) -> Result<f64> {
        let began = Instant::now();
        let mut connection = Connection::open(self.port).await?;
        connection.call(Method::GET, "/", &[]).await?;
        Ok(ms_since(began))
    }
}

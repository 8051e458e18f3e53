//! A connection that a response with status 101 changed from HTTP to another protocol, such as WebSocket. From then on
//! bytes pass unread, in both directions, until both ends are closed.

use std::any::Any;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::{Response, StatusCode};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::{Instant, timeout, timeout_at};

/// How long nothing may pass in either direction.
const SILENCE_MAX: Duration = Duration::from_secs(600);
/// How long the two connections may take to be handed over.
const BEGIN_MAX: Duration = Duration::from_secs(10);
const BUFFER: usize = 16 << 10;

/// The far end of a changed connection, with what is held until it is closed. An extension of the response.
#[derive(Clone)]
pub struct Tunnel {
    far: OnUpgrade,
    held: Vec<Arc<dyn Any + Send + Sync>>,
}

impl Tunnel {
    /// Takes it from the response that begins it. `None` for every other response.
    pub fn take<B>(response: &mut Response<B>) -> Option<Self> {
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return None;
        }
        let begun = response.extensions_mut().remove::<Self>();
        Some(begun.unwrap_or_else(|| Self {
            far: hyper::upgrade::on(response),
            held: Vec::new(),
        }))
    }

    /// Keeps a value until the connection is closed.
    #[must_use]
    pub fn holding(mut self, value: impl Any + Send + Sync) -> Self {
        self.held.push(Arc::new(value));
        self
    }

    /// Passes bytes between the near and the far end until both are closed.
    ///
    /// # Errors
    /// If an end breaks, or nothing passes for ten minutes. Both ends are then closed.
    pub async fn join(self, near: OnUpgrade) -> io::Result<()> {
        let both = async { tokio::try_join!(near, self.far) };
        let (near, far) = timeout(BEGIN_MAX, both).await?.map_err(io::Error::other)?;
        pass(TokioIo::new(near), TokioIo::new(far), SILENCE_MAX).await
    }
}

async fn pass<A, B>(near: A, far: B, silence: Duration) -> io::Result<()>
where
    A: AsyncRead + AsyncWrite,
    B: AsyncRead + AsyncWrite,
{
    let (from_near, to_near) = tokio::io::split(near);
    let (from_far, to_far) = tokio::io::split(far);
    let last = Mutex::new(Instant::now());
    let there = pass_one_way(from_near, to_far, &last, silence);
    let back = pass_one_way(from_far, to_near, &last, silence);
    tokio::try_join!(there, back).map(|_| ())
}

/// Passes bytes until `from` is closed, then closes `to`. `last` is when something passed in either direction.
async fn pass_one_way(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    last: &Mutex<Instant>,
    silence: Duration,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let until = *last.lock() + silence;
        let length = match timeout_at(until, from.read(&mut buffer)).await {
            Ok(read) => read?,
            Err(late) if *last.lock() + silence <= Instant::now() => return Err(late.into()),
            Err(_) => continue,
        };
        if length == 0 {
            return to.shutdown().await;
        }
        *last.lock() = Instant::now();
        let write = async {
            to.write_all(&buffer[..length]).await?;
            to.flush().await
        };
        timeout(silence, write).await??;
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn bytes_pass_both_ways_and_one_way_may_be_closed_first() {
        let ((mut client, near), (far, mut server)) = (duplex(64), duplex(64));
        let passing = tokio::spawn(pass(near, far, LONG));
        client.write_all(b"there").await.unwrap();
        let mut five = [0; 5];
        server.read_exact(&mut five).await.unwrap();
        assert_eq!(&five, b"there");
        client.shutdown().await.unwrap();
        assert_eq!(server.read(&mut five).await.unwrap(), 0);
        let answering = tokio::spawn(async move { server.write_all(&[7; 5_000]).await });
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, [7; 5_000]);
        answering.await.unwrap().unwrap();
        passing.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn it_ends_when_both_ways_are_silent() {
        let ((_client, near), (far, _server)) = (duplex(64), duplex(64));
        let ended = pass(near, far, Duration::from_millis(100)).await.unwrap_err();
        assert_eq!(ended.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn it_lasts_while_one_way_is_used() {
        let ((mut client, near), (far, mut server)) = (duplex(64), duplex(64));
        let passing = tokio::spawn(pass(near, far, Duration::from_secs(2)));
        for _ in 0..30 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            server.write_all(b"x").await.unwrap();
            client.read_u8().await.unwrap();
        }
        drop((client, server));
        passing.await.unwrap().unwrap();
    }
}

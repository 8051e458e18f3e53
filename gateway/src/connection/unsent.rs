//! How much of what was written to a socket its peer has not taken.
#![allow(
    unsafe_code,
    reason = "the kernel tells it by an ioctl, for which no crate here has a function"
)]

use std::os::fd::AsRawFd as _;

use nix::libc;
use tokio::net::TcpStream;

nix::ioctl_read_bad!(
    /// tcp(7), SIOCOUTQ: bytes in the send queue that were not acknowledged.
    outq,
    libc::TIOCOUTQ,
    libc::c_int
);

/// Bytes written and not acknowledged; 0 if it cannot be determined.
pub(super) fn unsent(stream: &TcpStream) -> u64 {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is open as long as the stream is borrowed, and the kernel writes one int through the
    // pointer.
    let told = unsafe { outq(stream.as_raw_fd(), &raw mut bytes) };
    match told {
        Ok(_) => u64::try_from(bytes).unwrap_or(0),
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn what_the_peer_does_not_read_is_counted_until_it_does() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut writer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut reader, _) = listener.accept().await.unwrap();
        assert_eq!(unsent(&writer), 0);
        let mut written = 0;
        while let Ok(Ok(n)) =
            tokio::time::timeout(std::time::Duration::from_millis(200), writer.write(&[7; 1 << 16])).await
        {
            written += n;
        }
        let before = unsent(&writer);
        assert!(before > 0 && before <= written as u64, "{before} of {written}");
        let mut room = vec![0; written];
        reader.read_exact(&mut room).await.unwrap();
        let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while unsent(&writer) > 0 {
            assert!(
                std::time::Instant::now() < end,
                "all was read, and {} are not acknowledged",
                unsent(&writer)
            );
            tokio::task::yield_now().await;
        }
    }
}

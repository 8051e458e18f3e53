//! Refuses a client that is not served at all.

use std::sync::Arc;
use std::time::Duration;

use axum::response::IntoResponse as _;
use rekindle_wire::ApiError;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

/// Maximum number of clients that are sent the reason at once; further connections are just closed.
const AT_ONCE: usize = 64;
/// How long to wait for a client to read the reason. If the connection were closed earlier, with a request unread, it
/// would be reset and the response lost.
const LINGER: Duration = Duration::from_secs(1);
/// How much of a request is read and discarded meanwhile, bytes.
const READ_MAX: usize = 64 << 10;

/// Sends clients the reason for a refusal, as far as that costs little.
#[derive(Debug, Clone)]
pub(crate) struct Refusals(Arc<Semaphore>);

impl Default for Refusals {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(AT_ONCE)))
    }
}

impl Refusals {
    /// Answers whatever the client sends with `error`, and closes.
    pub(crate) fn tell(&self, stream: TcpStream, error: &ApiError) {
        let Ok(place) = self.0.clone().try_acquire_owned() else {
            return;
        };
        let answer = raw(error);
        tokio::spawn(async move {
            drop(tokio::time::timeout(LINGER, told(stream, &answer)).await);
            drop(place);
        });
    }
}

async fn told(mut stream: TcpStream, answer: &[u8]) -> std::io::Result<()> {
    stream.write_all(answer).await?;
    stream.shutdown().await?;
    let mut room = [0; 4 << 10];
    let mut read = 0;
    while read < READ_MAX {
        match stream.read(&mut room).await? {
            0 => break,
            n => read += n,
        }
    }
    Ok(())
}

/// An error as an HTTP/1.1 response, for a connection that ends with it.
pub(super) fn raw(error: &ApiError) -> Vec<u8> {
    let answer = error.clone().into_response();
    let status = answer.status();
    let reason = status.canonical_reason().unwrap_or_default();
    let mut text = format!("HTTP/1.1 {} {reason}\r\nconnection: close\r\n", status.as_u16());
    // The code for other roles stays here.
    let told = answer
        .headers()
        .iter()
        .filter(|(name, _)| !name.as_str().starts_with("x-rekindle-"));
    for (name, value) in told {
        text.push_str(&format!("{name}: {}\r\n", value.to_str().unwrap_or_default()));
    }
    // The same form as in the response's body.
    let body = serde_json::to_string(error).unwrap_or_default() + "\n";
    text.push_str(&format!("content-length: {}\r\n\r\n{body}", body.len()));
    text.into_bytes()
}

#[cfg(test)]
mod tests {
    use rekindle_wire::ErrorCode;

    use super::*;

    #[test]
    fn what_is_told_is_an_answer_as_any_other_error_is() {
        let error = ApiError::new(ErrorCode::TooManyRequests, "less");
        let text = String::from_utf8(raw(&error)).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(
            head.starts_with("HTTP/1.1 429 Too Many Requests\r\nconnection: close\r\n"),
            "{head}"
        );
        assert!(
            head.contains("retry-after: 1") && !head.contains("x-rekindle"),
            "{head}"
        );
        assert!(head.contains(&format!("content-length: {}", body.len())), "{head}");
        assert_eq!(serde_json::from_str::<ApiError>(body).unwrap(), error);
    }
}

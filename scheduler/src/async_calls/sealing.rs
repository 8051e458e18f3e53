//! Headers that prove an identity: the database holds them encrypted, separate from the rest of their message. They are
//! put back where the message is used.

use rekindle_envelope::{MasterKey, OpenError, SealError};
use rekindle_wire::CallId;
use rekindle_wire::asynchronous::Headers;

/// A message's headers that are sealed, in lower case, as the gateway keeps them.
const SECRET: [&str; 4] = ["authorization", "cookie", "proxy-authorization", "set-cookie"];

/// The message they belong to; what is sealed for one cannot be opened for the other.
#[derive(Debug, Clone, Copy)]
pub(super) enum Message {
    Request,
    Answer,
}

/// Why sealed headers could not be put back.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnsealError {
    /// The record cannot be decrypted.
    #[error("its sealed headers cannot be opened")]
    Open(#[source] OpenError),
    /// The record can be decrypted, but does not hold headers.
    #[error("its sealed headers cannot be read")]
    Read(#[source] serde_json::Error),
}

/// Takes the secret headers out and returns them sealed; `None` if there are none.
pub(super) fn seal(
    key: &MasterKey,
    id: &CallId,
    message: Message,
    headers: &mut Headers,
) -> Result<Option<Vec<u8>>, SealError> {
    let (secret, open): (Vec<_>, Vec<_>) = std::mem::take(&mut headers.0)
        .into_iter()
        .partition(|(name, _)| SECRET.contains(&name.to_ascii_lowercase().as_str()));
    headers.0 = open;
    if secret.is_empty() {
        return Ok(None);
    }
    // Pairs of strings are always valid JSON.
    let text = serde_json::to_vec(&Headers(secret)).unwrap_or_default();
    key.seal(&owner(id, message), &text).map(Some)
}

/// Puts sealed headers back.
pub(super) fn unseal(
    key: &MasterKey,
    id: &CallId,
    message: Message,
    sealed: Option<&[u8]>,
    headers: &mut Headers,
) -> Result<(), UnsealError> {
    let Some(sealed) = sealed else { return Ok(()) };
    let text = key.open(&owner(id, message), sealed).map_err(UnsealError::Open)?;
    let secret: Headers = serde_json::from_slice(&text).map_err(UnsealError::Read)?;
    headers.0.extend(secret.0);
    Ok(())
}

fn owner(id: &CallId, message: Message) -> String {
    match message {
        Message::Request => format!("async_calls.request {id}"),
        Message::Answer => format!("async_calls.answer {id}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> Headers {
        Headers(pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect())
    }

    #[test]
    fn secret_headers_are_sealed_for_their_message_and_come_back() {
        let key = "00112233445566778899aabbccddeeff".parse::<MasterKey>().unwrap();
        let (id, other) = (CallId::generate(), CallId::generate());
        let whole = headers(&[
            ("accept", "*/*"),
            ("Authorization", "Bearer a"),
            ("cookie", "a=1"),
            ("cookie", "b=2"),
        ]);
        let mut kept = whole.clone();
        let sealed = seal(&key, &id, Message::Request, &mut kept).unwrap();
        assert_eq!(kept, headers(&[("accept", "*/*")]));
        for (id, message) in [(&other, Message::Request), (&id, Message::Answer)] {
            let opened = unseal(&key, id, message, sealed.as_deref(), &mut kept.clone());
            assert!(opened.is_err(), "{id} {message:?}");
        }
        unseal(&key, &id, Message::Request, sealed.as_deref(), &mut kept).unwrap();
        assert_eq!(kept, whole);
    }

    #[test]
    fn what_has_no_secrets_has_nothing_sealed() {
        let key = "00112233445566778899aabbccddeeff".parse::<MasterKey>().unwrap();
        let mut kept = headers(&[("accept", "*/*")]);
        let before = kept.clone();
        assert_eq!(
            seal(&key, &CallId::generate(), Message::Answer, &mut kept).unwrap(),
            None
        );
        assert_eq!(kept, before);
    }
}

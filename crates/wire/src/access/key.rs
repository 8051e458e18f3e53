//! Keys of the API: `fnk_ID_SECRET`. The id names the key in listings and logs, the secret has 256 random bits.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ids::{ParseIdError, text_type};

/// What every key begins with.
const PREFIX: &[u8] = b"fnk_";
/// Hexadecimal digits of a key's id.
const ID_DIGITS: usize = 16;
/// Hexadecimal digits of a key's secret.
const SECRET_DIGITS: usize = 64;

/// The id of a key of the API. It is no secret.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "String", into = "String")]
#[schema(value_type = String, example = "k-0123456789abcdef")]
pub struct KeyId(Arc<str>);

text_type!(KeyId);

impl FromStr for KeyId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        match text.strip_prefix("k-") {
            Some(digits) if are_digits(digits.as_bytes(), ID_DIGITS) => Ok(Self(text.into())),
            _ => Err(ParseIdError::Id(text.to_owned(), "k")),
        }
    }
}

fn are_digits(text: &[u8], count: usize) -> bool {
    text.len() == count && text.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// A new key, and its id.
pub fn generate() -> (KeyId, String) {
    let id = format!("{:016x}", rand::random::<u64>());
    let secret: String = rand::random::<[u8; 32]>().iter().map(|b| format!("{b:02x}")).collect();
    (KeyId(format!("k-{id}").into()), format!("fnk_{id}_{secret}"))
}

/// The id in a text that has the form of a key. `None` for any other text.
pub fn id_in(key: &[u8]) -> Option<KeyId> {
    let (id, rest) = key.strip_prefix(PREFIX)?.split_at_checked(ID_DIGITS)?;
    let is_key = are_digits(id, ID_DIGITS) && are_digits(rest.strip_prefix(b"_")?, SECRET_DIGITS);
    let id = std::str::from_utf8(id).ok().filter(|_| is_key)?;
    Some(KeyId(format!("k-{id}").into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_names_its_id_and_no_other_text_does() {
        let (id, key) = generate();
        assert_eq!(id_in(key.as_bytes()), Some(id.clone()));
        assert_eq!(id.as_str().parse::<KeyId>().unwrap(), id);
        for text in [
            &key[1..],
            &key[..key.len() - 1],
            &format!("{key}0"),
            &key.to_uppercase(),
            "",
            "fnk_",
        ] {
            assert_eq!(id_in(text.as_bytes()), None, "{text}");
        }
        // Of another service.
        assert_eq!(id_in(b"rk_live_0123456789"), None);
        for text in ["k-", "k-0123", "k-0123456789abcdeg", "0123456789abcdef"] {
            assert!(text.parse::<KeyId>().is_err(), "{text}");
        }
    }

    #[test]
    fn every_bit_of_a_secret_is_random() {
        let secrets = (0..1_000).map(|_| {
            let (_, key) = generate();
            let (_, secret) = key.rsplit_once('_').unwrap();
            u128::from_str_radix(&secret[..32], 16).unwrap()
                ^ u128::from_str_radix(&secret[32..], 16).unwrap().rotate_left(1)
        });
        let (ever, always) = secrets.fold((0, u128::MAX), |(or, and), bits| (or | bits, and & bits));
        assert_eq!((ever, always), (u128::MAX, 0));
    }
}

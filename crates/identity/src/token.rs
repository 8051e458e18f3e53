//! Join tokens: a secret for a role, valid for a limited time and number of hosts. The authority keeps their digests.
//! They are files, because `fn cluster token` adds one while the scheduler runs.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::files::{self, FileError};
use rekindle_wire::clock::unix_s;
use rekindle_wire::interface::Role;

const PREFIX: &str = "rkj";
/// Hexadecimal digits of 32 bytes.
const DIGITS: usize = 64;

/// The credentials for joining: a secret, and the fingerprint by which to recognise the authority.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    secret: String,
    pub(crate) fingerprint: String,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Keeps the secret out of logs.
        f.debug_struct("Token").finish_non_exhaustive()
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}-{}-{}", self.secret, self.fingerprint)
    }
}

impl FromStr for Token {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_hex = |part: &str| part.len() == DIGITS && part.bytes().all(|b| b.is_ascii_hexdigit());
        let parts: Vec<&str> = text.trim().split('-').collect();
        match parts[..] {
            [PREFIX, secret, fingerprint] if is_hex(secret) && is_hex(fingerprint) => Ok(Self {
                secret: secret.to_owned(),
                fingerprint: fingerprint.to_owned(),
            }),
            _ => Err("not a join token: copy the whole line that `fn cluster token` printed".to_owned()),
        }
    }
}

/// Why a token cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// It was never created, or has been used up.
    #[error("the join token is unknown or was used up: make another with `fn cluster token`")]
    Unknown,
    /// It has expired.
    #[error("the join token has expired: make another with `fn cluster token`")]
    Expired,
    /// It is for another role.
    #[error("the join token is for a {0}: make another with `fn cluster token --role`")]
    Role(Role),
    /// The files cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredToken {
    role: Role,
    expires_unix_s: u64,
    uses: u32,
}

/// All tokens of an authority.
#[derive(Debug)]
pub struct Tokens {
    directory: PathBuf,
    spending: Mutex<()>,
}

impl Tokens {
    pub(crate) fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            spending: Mutex::new(()),
        }
    }

    /// Creates a token for an authority with this fingerprint. It admits this many hosts of a role within `life`.
    ///
    /// # Errors
    /// If it cannot be stored.
    pub fn make(&self, fingerprint: String, role: Role, uses: u32, life: Duration) -> Result<Token, TokenError> {
        let bytes: [u8; 32] = rand::random();
        let secret: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        let kept = StoredToken {
            role,
            expires_unix_s: unix_s().cast_unsigned().saturating_add(life.as_secs()),
            uses,
        };
        files::make_directory(&self.directory)?;
        self.keep(&secret, &kept)?;
        Ok(Token { secret, fingerprint })
    }

    /// Uses a token once, for a role.
    ///
    /// # Errors
    /// If it is unknown, expired, used up or for another role. It stays unchanged then.
    pub fn spend(&self, token: &Token, role: Role) -> Result<(), TokenError> {
        let _one = self.spending.lock();
        let text = files::read(&self.file(&token.secret))?.ok_or(TokenError::Unknown)?;
        let mut kept: StoredToken = serde_json::from_str(&text).map_err(|_| TokenError::Unknown)?;
        if kept.expires_unix_s <= unix_s().cast_unsigned() {
            files::remove(&self.file(&token.secret))?;
            return Err(TokenError::Expired);
        }
        if kept.role != role {
            return Err(TokenError::Role(kept.role));
        }
        kept.uses = kept.uses.saturating_sub(1);
        if kept.uses == 0 {
            files::remove(&self.file(&token.secret))?;
            return Ok(());
        }
        Ok(self.keep(&token.secret, &kept)?)
    }

    fn keep(&self, secret: &str, kept: &StoredToken) -> Result<(), FileError> {
        // It only contains strings and numbers.
        let text = serde_json::to_string(kept).unwrap_or_default();
        files::write(&self.file(secret), &text)
    }

    /// Named by the digest of the secret, so that readers of the directory cannot join.
    fn file(&self, secret: &str) -> PathBuf {
        let digest = blake3::hash(secret.as_bytes());
        self.directory.join(format!("{}.json", digest.to_hex()))
    }
}

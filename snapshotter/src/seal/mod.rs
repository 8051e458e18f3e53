//! Encryption of snapshots. An object of an encrypted snapshot is *sealed*: every byte of it is encrypted with the key
//! of its namespace, after compression. Chunks of such snapshots are named by a keyed digest. So nobody without the key
//! can read a snapshot, or tell which memory two of them have in common.
//!
//! ```text
//! publish ─► SealedStore  ─► store       sealed once, on the way out
//! open    ◄─ SealedStore  ◄─ store       opened by the key that the object names
//! faults  ◄─ RegionReader ◄─ chunk cache, which has chunks as the store has them
//! ```
//!
//! Layers, and lists of names, are never sealed.

mod file;
mod form;
mod key;
mod key_id;
mod keyring;
mod store;
#[cfg(test)]
mod tests;

pub use form::sealed_len;
pub(crate) use form::{HEADER, Header, place_of};
pub use key::{OpenSealError, SealError, SealingKey};
pub use key_id::KeyId;
pub use keyring::Keyring;
pub use store::opening;
pub(crate) use store::sealing;

use crate::keys;

/// Whether objects of this key may be sealed.
fn may_be_sealed(key: &str) -> bool {
    key.starts_with(keys::SNAPSHOTS) || key.starts_with(keys::CHUNKS)
}

//! The user namespace of a dump's processes. The CRIU that dumps runs in the host's user namespace, and the one that
//! restores runs in that of the processes.

use super::inventory::{INVENTORY_MAGIC, KIND};
use super::time::{IDS_MAGIC, KIND as IDS};
use super::{ImageError, first_message, framing, wire};

const FIELD_OWN: u64 = 3;
const FIELD_USERS: u64 = 10;

#[derive(Clone, PartialEq, prost::Message)]
struct Ids {
    #[prost(uint32, optional, tag = "10")]
    users: Option<u32>,
}

/// The ids of CRIU itself, left undecoded.
#[derive(Clone, PartialEq, prost::Message)]
struct InventoryEntry {
    #[prost(bytes = "vec", optional, tag = "3")]
    own: Option<Vec<u8>>,
}

/// The `inventory.img` of a CRIU in the same user namespace as the process with these ids (`ids-PID.img`).
///
/// # Errors
/// If an image does not parse.
pub fn in_users_of(inventory: &[u8], ids: &[u8]) -> Result<Vec<u8>, ImageError> {
    let entries = framing::bare_entries(inventory, INVENTORY_MAGIC);
    let entries = entries.map_err(|cause| ImageError::Framing { kind: KIND, cause })?;
    let InventoryEntry { own } = first_message(&entries, KIND)?;
    let theirs = framing::entries(ids, IDS_MAGIC).map_err(|cause| ImageError::Framing { kind: IDS, cause })?;
    let Ids { users } = first_message(&theirs, IDS)?;
    let edited = wire::with_varint(&own.unwrap_or_default(), FIELD_USERS, users.unwrap_or(0).into())
        .and_then(|own| wire::with_bytes(entries[0], FIELD_OWN, &own));
    let edited = edited.map_err(|cause| ImageError::Wire { kind: KIND, cause })?;
    let all = std::iter::once(edited.as_slice()).chain(entries.iter().skip(1).copied());
    Ok(framing::bare_image(INVENTORY_MAGIC, all))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inventory(users: u8) -> Vec<u8> {
        // Fields unknown here stay: the version, the network's id, and what follows.
        let own = [0x30, 2, 0x50, users];
        let entry = [&[0x08, 2, 0x1a, 4][..], &own, &[0x20, 1]].concat();
        framing::bare_image(INVENTORY_MAGIC, std::iter::once(entry.as_slice()))
    }

    #[test]
    fn criu_comes_into_the_processes_users() {
        let ids = framing::image(IDS_MAGIC, [&[0x08, 2, 0x50, 9][..]].into_iter());
        assert_eq!(in_users_of(&inventory(5), &ids).unwrap(), inventory(9));
        assert!(in_users_of(&ids, &ids).is_err());
        assert!(in_users_of(&inventory(5), &inventory(5)).is_err());
    }
}

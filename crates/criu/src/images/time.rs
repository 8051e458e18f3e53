//! The time namespace of a dump's processes: that of the CRIU that dumped them, or another.
//!
//! A restored process is in its own time namespace, in which its clocks continue. A second dump of it would be restored
//! in its own namespaces too. That takes several more steps than a process that shares everything with CRIU. Its clocks
//! continue in that case as well: the image of its clocks then has the number 0.

use std::collections::BTreeSet;

use super::inventory::{INVENTORY_MAGIC, KIND as INVENTORY};
use super::{ImageError, first_message, framing, wire};

pub(super) const KIND: &str = "ids";
pub(super) const IDS_MAGIC: u32 = 0x5443_2030;
const FIELD_TIME: u64 = 12;

#[derive(Clone, PartialEq, prost::Message)]
struct Ids {
    #[prost(uint32, optional, tag = "12")]
    time: Option<u32>,
}

/// The ids of CRIU itself.
#[derive(Clone, PartialEq, prost::Message)]
struct InventoryEntry {
    #[prost(message, optional, tag = "3")]
    own: Option<Ids>,
}

/// Processes that are to join CRIU's own time namespace.
#[derive(Debug, PartialEq, Eq)]
pub struct OtherTime {
    /// The number of their clocks' image, which must become 0.
    pub clocks: u32,
    /// The edited `ids-PID.img` files, in order.
    pub ids: Vec<Vec<u8>>,
}

/// Edits the `ids-PID.img` files of a dump. `None` if its processes are already in CRIU's time namespace, or not all in
/// the same one.
///
/// # Errors
/// If an image does not parse.
pub fn in_criu_s_time(inventory: &[u8], ids: &[Vec<u8>]) -> Result<Option<OtherTime>, ImageError> {
    let entries = framing::bare_entries(inventory, INVENTORY_MAGIC);
    let entries = entries.map_err(|cause| ImageError::Framing { kind: INVENTORY, cause })?;
    let inventory: InventoryEntry = first_message(&entries, INVENTORY)?;
    let own = inventory.own.and_then(|own| own.time);
    let (mut theirs, mut edited) = (BTreeSet::new(), Vec::with_capacity(ids.len()));
    for image in ids {
        let entries = framing::entries(image, IDS_MAGIC).map_err(|cause| ImageError::Framing { kind: KIND, cause })?;
        let found: Ids = first_message(&entries, KIND)?;
        theirs.insert(found.time);
        let message = wire::with_varint(entries[0], FIELD_TIME, own.unwrap_or(0).into());
        let message = message.map_err(|cause| ImageError::Wire { kind: KIND, cause })?;
        let rest = entries.iter().skip(1).copied();
        edited.push(framing::image(
            IDS_MAGIC,
            std::iter::once(message.as_slice()).chain(rest),
        ));
    }
    Ok(match (own, theirs.pop_first().flatten()) {
        (Some(own), Some(time)) if theirs.is_empty() && time != own => Some(OtherTime {
            clocks: time,
            ids: edited,
        }),
        _ => None,
    })
}

const TIME_MAGIC: u32 = 0x4311_4433;

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct TimeEntry {
    #[prost(uint64, required, tag = "1")]
    seconds: u64,
    #[prost(uint64, required, tag = "2")]
    nanoseconds: u64,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Clocks {
    #[prost(message, required, tag = "1")]
    monotonic: TimeEntry,
    #[prost(message, required, tag = "2")]
    boottime: TimeEntry,
}

/// Clocks at a checkpoint, in seconds and nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockTimes {
    /// `CLOCK_MONOTONIC`.
    pub monotonic: (u64, u64),
    /// `CLOCK_BOOTTIME`.
    pub boottime: (u64, u64),
}

/// The contents of `timens-ID.img`.
///
/// # Errors
/// If it does not parse.
pub fn clock_times(image: &[u8]) -> Result<ClockTimes, ImageError> {
    let entries = framing::entries(image, TIME_MAGIC).map_err(|cause| ImageError::Framing { kind: "timens", cause })?;
    let Clocks { monotonic, boottime } = first_message(&entries, "timens")?;
    let both = |time: TimeEntry| (time.seconds, time.nanoseconds);
    Ok(ClockTimes {
        monotonic: both(monotonic),
        boottime: both(boottime),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_read() {
        let image = framing::image(
            TIME_MAGIC,
            [&[0x0a, 4, 0x08, 7, 0x10, 9, 0x12, 4, 0x08, 8, 0x10, 1][..]].into_iter(),
        );
        let expected = ClockTimes {
            monotonic: (7, 9),
            boottime: (8, 1),
        };
        assert_eq!(clock_times(&image).unwrap(), expected);
        assert!(clock_times(b"none").is_err());
    }

    fn inventory(time: u8) -> Vec<u8> {
        let own = [0x08, 1, 0x60, time];
        let entry = [&[0x08, 2, 0x1a, 4][..], &own].concat();
        let length = (entry.len() as u32).to_le_bytes();
        [&INVENTORY_MAGIC.to_le_bytes()[..], &length, &entry].concat()
    }

    fn ids(time: u8) -> Vec<u8> {
        // A field unknown here stays: the network's id.
        framing::image(IDS_MAGIC, [&[0x08, 2, 0x30, 2, 0x60, time][..]].into_iter())
    }

    #[test]
    fn processes_of_one_other_time_come_into_criu_s() {
        let found = in_criu_s_time(&inventory(5), &[ids(9), ids(9)]).unwrap();
        let expected = OtherTime {
            clocks: 9,
            ids: vec![ids(5), ids(5)],
        };
        assert_eq!(found, Some(expected));
        for others in [vec![ids(5)], vec![ids(9), ids(10)], vec![ids(9), ids(5)], vec![]] {
            assert_eq!(in_criu_s_time(&inventory(5), &others).unwrap(), None, "{others:?}");
        }
        assert!(in_criu_s_time(&ids(5), &[ids(9)]).is_err());
        assert!(in_criu_s_time(&inventory(5), &[inventory(5)]).is_err());
    }
}

//! `core-TID.img`: the location of a thread's restartable-sequences area, and the thread's user.
//!
//! The kernel writes to that area as soon as CRIU has registered it, before anything else could touch the process's
//! memory.

use prost::Message as _;

use super::{ImageError, first_message, framing, wire};

const KIND: &str = "core";
const CORE_MAGIC: u32 = 0x5505_3847;

#[derive(Clone, PartialEq, prost::Message)]
struct CoreEntry {
    #[prost(message, optional, tag = "3")]
    task: Option<TaskEntry>,
    #[prost(message, optional, tag = "5")]
    thread: Option<ThreadEntry>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct TaskEntry {
    #[prost(bool, optional, tag = "18")]
    child_subreaper: Option<bool>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ThreadEntry {
    #[prost(message, optional, tag = "15")]
    rseq: Option<RseqEntry>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RseqEntry {
    #[prost(uint64, required, tag = "1")]
    address: u64,
    #[prost(uint32, required, tag = "2")]
    size: u32,
}

/// A core entry, the thread entry in it, and the credentials in that: as bytes that can be put back among the rest.
#[derive(Clone, PartialEq, prost::Message)]
struct CoreBytes {
    #[prost(bytes = "vec", optional, tag = "5")]
    thread: Option<Vec<u8>>,
}

const FIELD_THREAD: u64 = 5;

#[derive(Clone, PartialEq, prost::Message)]
struct ThreadBytes {
    #[prost(bytes = "vec", optional, tag = "10")]
    creds: Option<Vec<u8>>,
}

const FIELD_CREDS: u64 = 10;
const FIELD_DEATH_SIGNAL: u64 = 8;

/// User and group ids: real, effective, saved and file system.
#[derive(Clone, PartialEq, prost::Message)]
struct Ids {
    #[prost(uint32, required, tag = "1")]
    uid: u32,
    #[prost(uint32, required, tag = "2")]
    gid: u32,
    #[prost(uint32, required, tag = "3")]
    euid: u32,
    #[prost(uint32, required, tag = "4")]
    egid: u32,
    #[prost(uint32, required, tag = "5")]
    suid: u32,
    #[prost(uint32, required, tag = "6")]
    sgid: u32,
    #[prost(uint32, required, tag = "7")]
    fsuid: u32,
    #[prost(uint32, required, tag = "8")]
    fsgid: u32,
}

/// The image of a thread with another user and the group of the same number. `None` unless the thread is the user
/// `from` in every respect.
///
/// # Errors
/// If the image does not parse.
pub fn with_user(image: &[u8], from: u32, to: u32) -> Result<Option<Vec<u8>>, ImageError> {
    let entries = framing::entries(image, CORE_MAGIC).map_err(|cause| ImageError::Framing { kind: KIND, cause })?;
    let malformed = |cause| ImageError::Message {
        kind: KIND,
        entry: 0,
        cause,
    };
    let edited = |cause| ImageError::Wire { kind: KIND, cause };
    let core: CoreBytes = first_message(&entries, KIND)?;
    let thread = core.thread.unwrap_or_default();
    let ThreadBytes { creds } = ThreadBytes::decode(thread.as_slice()).map_err(malformed)?;
    let Some(mut creds) = creds else { return Ok(None) };
    let ids = Ids::decode(creds.as_slice()).map_err(malformed)?;
    let all = [
        ids.uid, ids.gid, ids.euid, ids.egid, ids.suid, ids.sgid, ids.fsuid, ids.fsgid,
    ];
    if all != [from; 8] {
        return Ok(None);
    }
    for field in 1..=8 {
        creds = wire::with_varint(&creds, field, u64::from(to)).map_err(edited)?;
    }
    let thread = wire::with_bytes(&thread, FIELD_CREDS, &creds).map_err(edited)?;
    let core = wire::with_bytes(entries[0], FIELD_THREAD, &thread).map_err(edited)?;
    let rest = entries.iter().skip(1).copied();
    Ok(Some(framing::image(
        CORE_MAGIC,
        std::iter::once(core.as_slice()).chain(rest),
    )))
}

/// The image of a thread that no signal tells of its parent's death.
///
/// # Errors
/// If the image does not parse.
pub fn without_death_signal(image: &[u8]) -> Result<Vec<u8>, ImageError> {
    let entries = framing::entries(image, CORE_MAGIC).map_err(|cause| ImageError::Framing { kind: KIND, cause })?;
    let edited = |cause| ImageError::Wire { kind: KIND, cause };
    let core: CoreBytes = first_message(&entries, KIND)?;
    let thread = wire::without(&core.thread.unwrap_or_default(), FIELD_DEATH_SIGNAL).map_err(edited)?;
    let core = wire::with_bytes(entries[0], FIELD_THREAD, &thread).map_err(edited)?;
    let rest = entries.iter().skip(1).copied();
    Ok(framing::image(CORE_MAGIC, std::iter::once(core.as_slice()).chain(rest)))
}

/// The thread's restartable-sequences area: address and size. `None` if it registered none.
pub fn rseq_area(image: &[u8]) -> Result<Option<(u64, u32)>, ImageError> {
    let entries = framing::entries(image, CORE_MAGIC).map_err(|cause| ImageError::Framing { kind: KIND, cause })?;
    let core: CoreEntry = first_message(&entries, KIND)?;
    let rseq = core.thread.and_then(|t| t.rseq);
    Ok(rseq.filter(|r| r.address != 0).map(|r| (r.address, r.size)))
}

/// Whether the process is given those below it whose parent ends. False for a thread.
///
/// # Errors
/// If the image does not parse.
pub fn adopts_orphans(image: &[u8]) -> Result<bool, ImageError> {
    let entries = framing::entries(image, CORE_MAGIC).map_err(|cause| ImageError::Framing { kind: KIND, cause })?;
    let core: CoreEntry = first_message(&entries, KIND)?;
    Ok(core.task.is_some_and(|task| task.child_subreaper == Some(true)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_adopts_orphans_if_its_image_says_so() {
        let of = |child_subreaper| {
            let entry = CoreEntry {
                task: Some(TaskEntry { child_subreaper }),
                thread: None,
            };
            framing::image(CORE_MAGIC, [entry.encode_to_vec().as_slice()].into_iter())
        };
        let adopts = [Some(true), Some(false), None].map(|said| adopts_orphans(&of(said)).unwrap());
        assert_eq!(adopts, [true, false, false]);
        assert!(!adopts_orphans(&core([1; 8])).unwrap());
        assert!(adopts_orphans(b"none").is_err());
    }

    fn core(ids: [u32; 8]) -> Vec<u8> {
        let [uid, gid, euid, egid, suid, sgid, fsuid, fsgid] = ids;
        let ids = Ids {
            uid,
            gid,
            euid,
            egid,
            suid,
            sgid,
            fsuid,
            fsgid,
        };
        // They are followed by a field unknown here: securebits.
        let creds = [ids.encode_to_vec(), vec![0x68, 7]].concat();
        let thread = ThreadBytes { creds: Some(creds) };
        let comm = [0x6a, 2, b'p', b'y'];
        let thread = [thread.encode_to_vec(), comm.to_vec()].concat();
        let entry = CoreBytes { thread: Some(thread) };
        let mtype = [0x08, 1];
        framing::image(
            CORE_MAGIC,
            [[mtype.to_vec(), entry.encode_to_vec()].concat().as_slice()].into_iter(),
        )
    }

    #[test]
    fn a_thread_becomes_another_user_and_nothing_else() {
        let edited = with_user(&core([100_001; 8]), 100_001, 170_000).unwrap().unwrap();
        let back = with_user(&edited, 170_000, 100_001).unwrap().unwrap();
        assert_eq!(with_user(&back, 100_001, 170_000).unwrap().unwrap(), edited);
        let found = |image: &[u8]| {
            let entries = framing::entries(image, CORE_MAGIC).unwrap();
            let core: CoreBytes = first_message(&entries, KIND).unwrap();
            let thread = core.thread.unwrap();
            let creds = ThreadBytes::decode(thread.as_slice()).unwrap().creds.unwrap();
            (
                Ids::decode(creds.as_slice()).unwrap().fsgid,
                wire::without(&creds, 1).unwrap().ends_with(&[0x68, 7]),
                thread.windows(2).any(|w| w == b"py"),
                entries[0].starts_with(&[0x08, 1]),
            )
        };
        assert_eq!(found(&edited), (170_000, true, true, true));
        assert_eq!(found(&back), found(&core([100_001; 8])));
    }

    #[test]
    fn a_thread_s_death_signal_goes_and_nothing_else() {
        let plain = core([100_001; 8]);
        let entries = framing::entries(&plain, CORE_MAGIC).unwrap();
        let thread = first_message::<CoreBytes>(&entries, KIND).unwrap().thread.unwrap();
        let thread = wire::with_varint(&thread, FIELD_DEATH_SIGNAL, 9).unwrap();
        let told = wire::with_bytes(entries[0], FIELD_THREAD, &thread).unwrap();
        let told = framing::image(CORE_MAGIC, std::iter::once(told.as_slice()));
        assert_ne!(told, plain);
        assert_eq!(without_death_signal(&told).unwrap(), plain);
        assert_eq!(without_death_signal(&plain).unwrap(), plain);
        assert!(without_death_signal(b"none").is_err());
    }

    #[test]
    fn one_that_is_another_user_already_in_some_respect_is_left() {
        for at in 0..8 {
            let mut ids = [100_001; 8];
            ids[at] = 0;
            assert_eq!(with_user(&core(ids), 100_001, 5).unwrap(), None, "{at}");
        }
        assert!(with_user(b"none", 1, 2).is_err());
    }
}

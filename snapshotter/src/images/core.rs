//! `core-TID.img`: of it, where a thread's restartable-sequences area lies.
//!
//! The kernel writes there as soon as CRIU has registered it, which is before anybody else could touch the process's
//! memory.

use super::{ImageError, first_message, framing};

const KIND: &str = "core";
const CORE_MAGIC: u32 = 0x5505_3847;

#[derive(Clone, PartialEq, prost::Message)]
struct CoreEntry {
    #[prost(message, optional, tag = "5")]
    thread: Option<ThreadEntry>,
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

/// The restartable-sequences area of the thread: address and bytes; `None` if it registered none.
pub fn rseq_area(image: &[u8]) -> Result<Option<(u64, u32)>, ImageError> {
    let entries = framing::entries(image, CORE_MAGIC).map_err(|cause| ImageError::Framing { kind: KIND, cause })?;
    let core: CoreEntry = first_message(&entries, KIND)?;
    let rseq = core.thread.and_then(|t| t.rseq);
    Ok(rseq.filter(|r| r.address != 0).map(|r| (r.address, r.size)))
}

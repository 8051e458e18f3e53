//! The snapshot format, over any object store (`rekindle-store`). CRIU writes and reads image directories. Everything
//! between two such directories is in this crate.
//!
//! ```text
//!  CRIU dump ──► directory ──► capture::publish ──► chunks/…, snapshots/ID/bundle, then snapshots/ID/manifest.json
//!                                                                     │
//!  CRIU restore ◄── directory ◄── Snapshot::write_images ◄── Snapshot::open
//!  worker       ◄── images in memory ◄── Snapshot::images ◄────┘
//!  pager        ◄── RegionReader (chunk cache on disk, else the store) ◄── PageMap::lookup(page)
//! ```
//!
//! Byte layouts are in `docs/reference/snapshot-format.md`. Pure: [`codec`], [`pagemap`], [`manifest`],
//! [`GreedyDual`].

mod buffers;
mod bundle;
pub mod capture;
pub mod chunks;
pub mod codec;
pub mod collect;
pub mod delete;
pub mod digest;
#[doc(hidden)]
pub mod fuzz;
mod hash_tree;
pub mod inspect;
pub mod interchange;
pub mod keys;
pub mod layer;
pub mod manifest;
pub mod pagemap;
pub mod region_index;
pub mod seal;
mod single_flight;
pub mod snapshot;
#[cfg(test)]
mod testing;
pub mod working_set;

pub use bundle::{BundleTooLarge, SectionError};
pub use capture::{CaptureMeta, CaptureOptions, ExtraFile, PublishError, Published, publish};
pub use chunks::{CacheError, CacheUse, ChunkCache, ReadCounts, ReadError, RegionReader};
pub use codec::{Acceleration, Codec, RegionSize};
pub use collect::{Owner, Publication, PublicationError};
pub use delete::delete;
pub use digest::Digest;
pub use inspect::inspect;
pub use layer::{fetch_layer, publish_layer};
pub use manifest::Manifest;
pub use pagemap::{PageIndex, PageMap, Region};
pub use region_index::RegionIndex;
pub use rekindle_retention::GreedyDual;
pub use rekindle_store::{Outcome, Store, StoreError, StoreEvent, StoreObserver};
pub use seal::{KeyId, Keyring, SealingKey};
pub use snapshot::{OpenError, Process, Snapshot, manifest_digest};
pub use working_set::{
    Recording, TouchedPage, UncheckedWorkingSet, WorkingSetPack, WorkingSetPage, load_working_set, store_working_set,
};

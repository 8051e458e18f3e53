//! CRIU's image files, as far as we read or edit them. Pure.
//!
//! Messages are declared with only the fields we need. An entry that is kept is written back byte for byte, so that
//! nothing from CRIU is lost.
//!
//! Source of the format: CRIU's `images/*.proto` and its image headers (magic numbers), as of CRIU 4.2.

mod core;
mod files;
mod framing;
mod inventory;
mod known_paths;
mod mappings;
mod mm;
mod pagemap;
mod stored;
mod template;
#[doc(hidden)]
pub mod testing;
mod time;
mod travel;
mod unix;
mod users;
mod wire;

pub use self::core::{adopts_orphans, rseq_area, with_user, without_death_signal};
pub use files::{file_names, renumber_pipes};
pub use framing::FramingError;
pub use inventory::Inventory;
pub use known_paths::{KNOWN_PATHS, KnownPath, known_paths};
pub use mappings::{Backing, Mapping, parse_mappings};
pub use mm::{Vma, argument_areas, parse_vmas, parse_wiped_on_fork};
pub use pagemap::{EagerRun, PE_LAZY, PE_PARENT, PE_PRESENT, PageFrom, PagemapEntry, PagemapImage, with_eager_pages};
pub use stored::{BLOCK_BYTES_MAX, Blocks, PE_PAYLOAD_ALIGNED, StoredPagemap, StoredRun};
pub use template::{
    FoldedArea, TemplateArea, TemplateEdit, TemplateImages, TemplateLayout, TemplateProcess, map_templates,
};

pub use time::{ClockTimes, OtherTime, clock_times, in_criu_s_time};
pub use travel::{Travelling, WrittenRun, parent_images, place_external, travelling};
pub use unix::{BoundSocket, SocketFile, bound_sockets, name_unix_sockets, place_unix_sockets};
pub use users::in_users_of;

/// Why bytes are not the expected image.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The framing of an image of this kind is wrong.
    #[error("not a CRIU {kind} image")]
    Framing {
        /// The expected kind.
        kind: &'static str,
        /// The framing error.
        #[source]
        cause: FramingError,
    },
    /// An entry is not the expected protobuf message.
    #[error("entry {entry} of the CRIU {kind} image does not decode")]
    Message {
        /// The kind of image.
        kind: &'static str,
        /// Number of the entry, from 0.
        entry: usize,
        /// The decoder's error.
        #[source]
        cause: prost::DecodeError,
    },
    /// The image has no first entry.
    #[error("CRIU {0} image is empty")]
    Empty(&'static str),
    /// An entry whose address is not page-aligned, is out of range, or is out of order.
    #[error("pagemap entry at {address:#x} of {pages} pages is out of range or out of order")]
    Range {
        /// Its address.
        address: u64,
        /// Number of pages.
        pages: u64,
    },
    /// Pages that are in an earlier, incremental image.
    #[error("pagemap entry at {address:#x} refers to a parent image: dump without --prev-images-dir")]
    Parent {
        /// Its address.
        address: u64,
    },
    /// A field that cannot be edited.
    #[error("a message of the CRIU {kind} image is no protobuf")]
    Wire {
        /// The kind of image.
        kind: &'static str,
        /// The position.
        #[source]
        cause: wire::WireError,
    },
    /// Blocks whose counts or sizes contradict each other.
    #[error("compressed blocks of the pagemap entry at {address:#x} are inconsistent")]
    Blocks {
        /// Its address.
        address: u64,
    },
    /// A mapping that ends before it starts.
    #[error("the mapping at {address:#x} ends before it begins")]
    Mapping {
        /// Its address.
        address: u64,
    },
    /// Flags that contradict each other.
    #[error("pagemap entry at {address:#x} has the flags {flags:#x}, which contradict each other")]
    Flags {
        /// Its address.
        address: u64,
        /// Its flags.
        flags: u32,
    },
    /// An image directory of an unknown version, or with an unknown compression.
    #[error("image version {version} with compression {compress} is not known: this build reads CRIU 4.3 and older")]
    Version {
        /// The version.
        version: u32,
        /// The compression mode of its pages.
        compress: u32,
    },
    /// Pages that were left in the dumped process.
    #[error("pagemap entry at {address:#x} has no pages in the image: dump without --lazy-pages")]
    Absent {
        /// Its address.
        address: u64,
    },
}

/// The first message of an image of kind `kind`.
fn first_message<M: prost::Message + Default>(messages: &[&[u8]], kind: &'static str) -> Result<M, ImageError> {
    let first = *messages.first().ok_or(ImageError::Empty(kind))?;
    M::decode(first).map_err(|cause| ImageError::Message { kind, entry: 0, cause })
}

//! Snapshots open on this host.
//!
//! - [`Snapshots`]: all of them, within the limit of a `tier` of memory. [`OpenSnapshot`]: one; `load` opens it.
//! - [`Template`]: its memory. `working_set`: the pages that restores touch; `stored_working_set`: those in the store.
//! - `edit`, `originals`, `program`: what becomes of its images on this host. [`expected`]: what they may contain.
//! - `dump_dir`: where images of checkpoints are written. `notes`: what is written beside them; `made_with`: what they
//!   are made with.
//! - `connections`: those of a function to itself.

mod cache;
pub(crate) mod connections;
mod criu_images;
pub(crate) mod dump_dir;
mod edit;
mod edited_snapshot;
mod error;
pub mod expected;
mod image_set;
mod images_dir;
mod known;
mod level;
mod load;
pub(crate) mod lost_locks;
mod made_with;
mod memory_fs;
mod notes;
mod open_snapshot;
mod originals;
mod program;
mod refusals;
mod show_program;
mod stored_working_set;
mod template;
mod tier;
mod working_set;

pub use cache::Snapshots;
pub use edit::EditError;
pub(crate) use edit::{
    MAPPED_MAX, adopts_orphans, become_user, bind_by_whole_paths, clocks, forget_outside, join_time, let_be_read,
    name_outputs, outlive_criu, touched_early,
};
pub use error::SnapshotError;
pub(crate) use image_set::Directory;
pub use images_dir::ImagesDir;
pub use made_with::made_with;
pub use memory_fs::{MemoryFs, MemoryFsError};
pub use notes::ProcessGenerators;
pub use notes::{
    AfterRestore, CaptureNotes, DeviceNumbers, FILE as NOTES_FILE, FILES_ARCHIVE, FileNumbers, NotesError, PipeNote,
    RootFile,
};
pub use open_snapshot::{MemoryTier, OpenSnapshot};
pub use originals::{LayerPlaces, Originals};
pub(crate) use program::{EditedImages, outputs, template_run};
pub use program::{ProgramUnavailable, RestoreProgram};
pub use refusals::Refusals;
pub use show_program::{ShowError, show as show_program};
pub use template::{ProcessMemory, Template, TemplateError};
pub use tier::TemplateUse;
pub use working_set::WorkingSetUse;

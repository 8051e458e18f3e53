//! A snapshot's images, checked, and edited so that their memory is mapped from templates.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;

use rekindle_init::protocol::{Clocks, FUNCTION_UID};
use rekindle_restore_compiler::PageRun;
use rekindle_snapshotter::Snapshot;
use rekindle_verify::{Verified, verify_in_memory};

use super::connections::{self, Connection};
use super::edit::{self, EditError, EditedMemory};
use super::error::SnapshotError;
use super::expected::expected;
use super::image_set::ImagesInMemory;
use super::notes::{CaptureNotes, FILES_ARCHIVE};
use super::originals;
use super::program::{self, EditedImages};

/// The images of a snapshot, and what they say.
pub(super) struct EditedSnapshot {
    pub(super) images: ImagesInMemory,
    pub(super) notes: CaptureNotes,
    /// What the images were before.
    pub(super) verified: Verified,
    /// The memory of each process.
    pub(super) processes: Vec<EditedMemory>,
    pub(super) clocks: Clocks,
    /// The function's connections to itself.
    pub(super) connections: Vec<Connection>,
    /// What maps the templates, by process id.
    templates: BTreeMap<u32, Vec<PageRun>>,
    /// The function's outputs, by the numbers that their pipes had.
    outputs: BTreeMap<u32, u32>,
    /// The sockets of these connections.
    connected: BTreeSet<u32>,
}

impl EditedSnapshot {
    /// Checks and edits the images of a snapshot. Its notes and the archive of its private files are in `dir`. `uid` is
    /// the host user that its processes may have had before each sandbox had ids of its own. With `writes_root` they
    /// may write to their root.
    ///
    /// # Errors
    /// Returns an error when the images are not a function's, or are malformed.
    #[expect(clippy::result_large_err, reason = "one for each opening of a snapshot")]
    pub(super) fn of(
        snapshot: &Snapshot,
        mut images: ImagesInMemory,
        dir: &Path,
        (uid, writes_root): (u32, bool),
    ) -> Result<Self, SnapshotError> {
        let id = snapshot.id();
        let edit = |e| SnapshotError::Edit(id.clone(), e);
        let mut notes = CaptureNotes::read(dir).map_err(|e| SnapshotError::Notes(id.clone(), e))?;
        let recorded_uid = edit::user_of(&images, uid).map_err(edit)?;
        let verified = verify_in_memory(images.iter(), &expected(recorded_uid, &notes.pipes, writes_root));
        let verified = verified.map_err(|e| SnapshotError::Refused(id.clone(), e))?;
        let outputs = program::outputs(&notes.pipes);
        edit::become_user(&mut images, recorded_uid, FUNCTION_UID).map_err(edit)?;
        let clocks = edit::clocks(&images).map_err(edit)?;
        // Only an image's root is written to.
        let written = match writes_root {
            true => originals::written(dir),
            false => Ok(HashSet::new()),
        };
        let written = written.map_err(|e| edit(EditError::File(FILES_ARCHIVE.into(), e)))?;
        let written = written.into_iter().chain(originals::nameless(&verified)).collect();
        let processes = edit::use_templates(&mut images, &snapshot.processes, &written).map_err(edit)?;
        edit::name_outputs(&mut images, &mut notes.pipes).map_err(edit)?;
        let layouts = std::iter::zip(&snapshot.processes, &processes);
        let templates = program::templates(layouts.map(|(process, edited)| (process.pid, &edited.layout)));
        let connections = connections::noted(&verified, &notes.connections);
        let connected = connections::sockets(&connections);
        Ok(Self {
            images,
            notes,
            verified,
            processes,
            clocks,
            connections,
            templates,
            outputs,
            connected,
        })
    }

    /// Returns what a program is compiled from. `dir` has the archive of private files.
    pub(super) fn to_compile<'a>(&'a self, dir: &'a Path) -> EditedImages<'a> {
        EditedImages {
            images: &self.images,
            dir,
            verified: &self.verified,
            templates: &self.templates,
            outputs: &self.outputs,
            connected: &self.connected,
        }
    }
}

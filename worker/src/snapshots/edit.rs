//! Edits a snapshot's images on this host so that its memory is mapped from the template.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rekindle_criu::PROBE_FILE;
use rekindle_criu::descriptors::{OUTPUT_PIPES, OUTPUT_STREAMS, pipe_key, pipe_number};
use rekindle_criu::images;
use rekindle_criu::images::{
    EagerRun, FoldedArea, ImageError, KNOWN_PATHS, OtherTime, PageFrom, TemplateLayout, TemplateProcess,
    argument_areas, clock_times, in_criu_s_time, in_users_of, map_templates, name_unix_sockets, renumber_pipes,
    rseq_area, with_eager_pages, with_user, without_death_signal,
};
use rekindle_init::protocol::{Clocks, FUNCTION_PID, FUNCTION_UID, held_path};
use rekindle_pager::PAGE;
use rekindle_snapshotter::{PageIndex, Process};
use rekindle_verify::Verified;

use super::notes::PipeNote;
use super::originals::is_of_a_layer;

/// Maximum number of processes restored from templates, because each one costs init a descriptor. Of more there are no
/// copies.
pub(crate) const MAPPED_MAX: usize = rekindle_restore_program::PROCESSES_MAX;

/// Index of the first template among the descriptors that init holds for CRIU. They follow the image directory, in the
/// order of the processes.
const FIRST_TEMPLATE: usize = 1;

/// Why images cannot be edited.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// A file cannot be read or written.
    #[error("{}", .0.display())]
    File(PathBuf, #[source] io::Error),
    /// An image is malformed.
    #[error("{name} cannot be edited")]
    Image {
        /// The image, or the first of the images edited together.
        name: String,
        /// The error in it.
        #[source]
        cause: ImageError,
    },
}

fn read(path: PathBuf) -> Result<Vec<u8>, EditError> {
    fs::read(&path).map_err(|e| EditError::File(path, e))
}

/// A process's memory as it will be restored.
#[derive(Debug, Default)]
pub(super) struct Edited {
    /// The mappings of its template; empty if it is restored without one.
    pub(super) layout: TemplateLayout,
    /// The bytes of the layout's folded areas, one after the other.
    pub(super) folded: Vec<u8>,
    /// Pages of these areas that were not written and are zero in `folded`. Their bytes are in their files.
    pub(super) unwritten: Vec<PageIndex>,
}

/// Replaces the images in `dir` so that processes are restored from templates where possible. Files at the paths
/// `written` are not those of a layer. Returns the outcome for each process, in order.
///
/// # Errors
/// Returns an error when an image is missing or malformed. Then either no image was replaced, or the directory is
/// unusable.
pub(super) fn use_templates(
    dir: &Path,
    processes: &[Process],
    written: &HashSet<PathBuf>,
) -> Result<Vec<Edited>, EditError> {
    let image_path = |kind: &str, pid: u32| dir.join(format!("{kind}-{pid}.img"));
    let paths: Vec<_> = (FIRST_TEMPLATE..).map(held_path).take(processes.len()).collect();
    let both = |p: &Process| Ok((read(image_path("mm", p.pid))?, read(image_path("pagemap", p.pid))?));
    let images = processes.iter().map(both).collect::<Result<Vec<_>, EditError>>()?;
    let files_path = dir.join("files.img");
    let files = read(files_path.clone())?;
    let held = processes
        .iter()
        .map(|process| move |pages: Range<PageIndex>| process.page_map.holds_any(pages.start, pages.end));
    let held: Vec<_> = held.collect();
    let asked: Vec<_> = std::iter::zip(&held, std::iter::zip(&images, &paths))
        .take(MAPPED_MAX)
        .map(|(holds_any, ((mm, pagemap), path))| TemplateProcess {
            mm,
            pagemap,
            holds_any,
            path,
        })
        .collect();
    let lasting = |path: &str| is_of_a_layer(path) && !written.contains(Path::new(path));
    let edited = map_templates(&files, &asked, lasting).map_err(|cause| EditError::Image {
        name: "files.img".to_owned(),
        cause,
    })?;
    let write = |path: PathBuf, bytes: &[u8]| fs::write(&path, bytes).map_err(|e| EditError::File(path, e));
    let mut done = Vec::with_capacity(processes.len());
    for (at, process) in processes.iter().enumerate() {
        let Some(edit) = edited.processes.get(at).and_then(Option::as_ref) else {
            done.push(Edited::default());
            continue;
        };
        write(image_path("mm", process.pid), &edit.mm)?;
        let (folded, unwritten) = if edit.folded.is_empty() {
            Default::default()
        } else {
            write(image_path("pagemap", process.pid), &edit.pagemap)?;
            let written = take_pages(
                &dir.join(format!("pages-{}.img", edit.pages_id)),
                &edit.folded,
                &edit.kept,
            )?;
            let folded = fold(&edit.layout.folded, &edit.folded, &written);
            if folded.0.len() != written.len() + folded.1.len() * PAGE as usize {
                let why = io::Error::new(io::ErrorKind::InvalidData, "its pages are not those of the mappings");
                return Err(EditError::File(image_path("pagemap", process.pid), why));
            }
            folded
        };
        let layout = edit.layout.clone();
        done.push(Edited {
            layout,
            folded,
            unwritten,
        });
    }
    write(files_path, &edited.files)?;
    Ok(done)
}

/// Builds the bytes of folded areas from the pages of `runs`, by address, as they were `written`. Also returns the
/// pages that are in no run and are zero.
fn fold(areas: &[FoldedArea], runs: &[EagerRun], written: &[u8]) -> (Vec<u8>, Vec<PageIndex>) {
    let mut written = written.chunks_exact(PAGE as usize);
    let mut runs = runs
        .iter()
        .flat_map(|run| run.first.0..run.first.0 + run.pages)
        .peekable();
    let pages: u64 = areas.iter().map(|a| a.area.pages).sum();
    let (mut folded, mut unwritten) = (Vec::with_capacity((pages * PAGE) as usize), Vec::new());
    for page in areas.iter().flat_map(|a| a.area.first.0..a.area.end().0) {
        match runs.next_if_eq(&page).and_then(|_| written.next()) {
            Some(bytes) => folded.extend_from_slice(bytes),
            None => {
                folded.resize(folded.len() + PAGE as usize, 0);
                unwritten.push(PageIndex(page));
            }
        }
    }
    (folded, unwritten)
}

/// Gives the outputs the names that they have in all images restored by a prestarted CRIU. If another pipe has one of
/// these names, all keep theirs.
///
/// # Errors
/// Returns an error when the image is missing or malformed, or cannot be written.
pub(crate) fn name_outputs(dir: &Path, notes: &mut [PipeNote]) -> Result<(), EditError> {
    let named = |note: &PipeNote| {
        let at = OUTPUT_STREAMS.iter().position(|stream| *stream == note.stream)?;
        Some((pipe_number(&note.key)?, OUTPUT_PIPES[at]))
    };
    let numbers: HashMap<_, _> = notes.iter().filter_map(named).collect();
    let path = dir.join("files.img");
    let renumbered = renumber_pipes(&read(path.clone())?, &numbers).map_err(|cause| EditError::Image {
        name: "files.img".to_owned(),
        cause,
    })?;
    let Some(image) = renumbered.filter(|_| numbers.len() == notes.len()) else {
        return Ok(());
    };
    fs::write(&path, image).map_err(|e| EditError::File(path, e))?;
    for note in notes {
        if let Some(number) = pipe_number(&note.key).and_then(|number| numbers.get(&number)) {
            note.key = pipe_key(*number);
        }
    }
    Ok(())
}

/// Changes the user of all threads from `from` to `to`.
///
/// # Errors
/// Returns an error when an image is missing or malformed, or cannot be written, or when a thread's user is not `from`.
pub(crate) fn become_user(dir: &Path, from: u32, to: u32) -> Result<(), EditError> {
    if from == to {
        return Ok(());
    }
    let listed = |e| EditError::File(dir.to_owned(), e);
    for entry in fs::read_dir(dir).map_err(listed)? {
        let name = entry.map_err(listed)?.file_name().to_string_lossy().into_owned();
        if !name.starts_with("core-") || !name.ends_with(".img") {
            continue;
        }
        let path = dir.join(&name);
        let edited = with_user(&read(path.clone())?, from, to);
        let edited = edited.map_err(|cause| EditError::Image { name, cause })?;
        let stranger = || io::Error::new(io::ErrorKind::InvalidData, format!("a thread is not user {from}"));
        let image = edited.ok_or_else(|| EditError::File(path.clone(), stranger()))?;
        fs::write(&path, image).map_err(|e| EditError::File(path, e))?;
    }
    Ok(())
}

/// Keeps CRIU's end from ending the function: CRIU is the parent of the first process until then. Init, its parent
/// otherwise, outlives it.
///
/// # Errors
/// Returns an error when an image is missing or malformed, or cannot be written.
pub(crate) fn outlive_criu(dir: &Path, images: &Verified) -> Result<(), EditError> {
    let first = images
        .processes
        .iter()
        .find(|process| process.tree.pid == FUNCTION_PID.cast_unsigned());
    for thread in first.iter().flat_map(|process| &process.threads) {
        let state = thread.core.thread_core.as_ref();
        if state.and_then(|state| state.pdeath_sig).unwrap_or(0) == 0 {
            continue;
        }
        let name = format!("core-{}.img", thread.tid);
        let path = dir.join(&name);
        let edited = without_death_signal(&read(path.clone())?);
        let edited = edited.map_err(|cause| EditError::Image { name, cause })?;
        fs::write(&path, edited).map_err(|e| EditError::File(path, e))?;
    }
    Ok(())
}

/// Has CRIU bind UNIX sockets with relative names by their whole paths. It would change, as root, to a directory that
/// the images name. A restore program binds them by their own names.
///
/// # Errors
/// Returns an error when the image is missing or malformed, or cannot be written.
pub(crate) fn bind_by_whole_paths(dir: &Path, images: &Verified) -> Result<(), EditError> {
    let sockets = images
        .files
        .iter()
        .filter_map(|(id, file)| Some((*id, file.usk.as_deref()?)));
    let relative = sockets.filter(|(_, socket)| socket.name_dir.is_some());
    let paths: HashMap<u32, Vec<u8>> = relative.map(|(id, socket)| (id, socket.path())).collect();
    if paths.is_empty() {
        return Ok(());
    }
    let path = dir.join("files.img");
    let edited = name_unix_sockets(&read(path.clone())?, &paths).map_err(|cause| EditError::Image {
        name: "files.img".to_owned(),
        cause,
    })?;
    fs::write(&path, edited).map_err(|e| EditError::File(path, e))
}

/// Removes from a dump what CRIU was given for it, and what it contains only because CRIU ran outside the sandbox:
/// other control groups, and the host's user namespace. The CRIU that restores it runs inside.
///
/// # Errors
/// Returns an error when an image is missing or malformed, or cannot be written.
pub(crate) fn forget_outside(dir: &Path) -> Result<(), EditError> {
    let listed = |e| EditError::File(dir.to_owned(), e);
    for entry in fs::read_dir(dir).map_err(listed)? {
        let name = entry.map_err(listed)?.file_name();
        let name = name.to_string_lossy();
        let is_outside = name == "cgroup.img" || name.starts_with("userns-");
        if is_outside || name == PROBE_FILE || name == KNOWN_PATHS {
            let path = dir.join(&*name);
            fs::remove_file(&path).map_err(|e| EditError::File(path, e))?;
        }
    }
    let (path, ids) = (dir.join("inventory.img"), format!("ids-{FUNCTION_PID}.img"));
    let edited = in_users_of(&read(path.clone())?, &read(dir.join(&ids))?);
    let edited = edited.map_err(|cause| EditError::Image { name: ids, cause })?;
    fs::write(&path, edited).map_err(|e| EditError::File(path, e))
}

/// Returns the user of the function's first process. It is either `earlier`, the host user of functions before each
/// sandbox had ids of its own, or their present user.
///
/// # Errors
/// Returns an error when the image is missing or malformed.
pub(crate) fn user_of(dir: &Path, earlier: u32) -> Result<u32, EditError> {
    let name = format!("core-{FUNCTION_PID}.img");
    let is_earlier = with_user(&read(dir.join(&name))?, earlier, earlier);
    let is_earlier = is_earlier.map_err(|cause| EditError::Image { name, cause })?;
    Ok(is_earlier.map_or(FUNCTION_UID, |_| earlier))
}

/// Returns whether the function's first process is given those below it whose parent ends.
///
/// # Errors
/// Returns an error when its image is missing or malformed.
pub(crate) fn adopts_orphans(dir: &Path) -> Result<bool, EditError> {
    let name = format!("core-{FUNCTION_PID}.img");
    let adopts = images::adopts_orphans(&read(dir.join(&name))?);
    adopts.map_err(|cause| EditError::Image { name, cause })
}

/// Returns the clocks of a dump's processes.
///
/// # Errors
/// Returns an error when their image is missing or malformed.
pub(crate) fn clocks(dir: &Path) -> Result<Clocks, EditError> {
    let listed = |e| EditError::File(dir.to_owned(), e);
    let mut name = "timens-0.img".to_owned();
    for entry in fs::read_dir(dir).map_err(listed)? {
        let found = entry.map_err(listed)?.file_name().to_string_lossy().into_owned();
        if found.starts_with("timens-") {
            name = found;
        }
    }
    let times = clock_times(&read(dir.join(&name))?).map_err(|cause| EditError::Image { name, cause })?;
    let signed = |(seconds, nanoseconds): (u64, u64)| (seconds.cast_signed(), nanoseconds.cast_signed());
    Ok(Clocks {
        monotonic: signed(times.monotonic),
        boottime: signed(times.boottime),
    })
}

/// Makes the directory's files readable for whoever is handed the directory: CRIU, as a sandbox's root, is nobody here.
///
/// # Errors
/// Returns an error when the kernel refuses.
pub(crate) fn let_be_read(dir: &Path) -> Result<(), EditError> {
    let listed = |e| EditError::File(dir.to_owned(), e);
    for entry in fs::read_dir(dir).map_err(listed)? {
        let path = entry.map_err(listed)?.path();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).map_err(|e| EditError::File(path, e))?;
    }
    Ok(())
}

/// Puts the processes of a dump into CRIU's own time namespace, if the CRIU that restored them had created another one.
/// Their clocks continue as well, and they are restored sooner.
///
/// # Errors
/// Returns an error when an image is missing or malformed, or cannot be written.
pub(crate) fn join_time(dir: &Path) -> Result<(), EditError> {
    let listed = |e| EditError::File(dir.to_owned(), e);
    let names = fs::read_dir(dir)
        .map_err(listed)?
        .map(|entry| Ok(entry.map_err(listed)?.file_name().to_string_lossy().into_owned()));
    let names = names.collect::<Result<Vec<String>, EditError>>()?;
    let ids: Vec<PathBuf> = names
        .iter()
        .filter(|name| name.starts_with("ids-") && name.ends_with(".img"))
        .map(|name| dir.join(name))
        .collect();
    let images = ids.iter().cloned().map(read).collect::<Result<Vec<_>, _>>()?;
    let edited = in_criu_s_time(&read(dir.join("inventory.img"))?, &images);
    let edited = edited.map_err(|cause| EditError::Image {
        name: "ids".to_owned(),
        cause,
    })?;
    let Some(OtherTime { clocks, ids: images }) = edited else {
        return Ok(());
    };
    let (from, to) = (dir.join(format!("timens-{clocks}.img")), dir.join("timens-0.img"));
    if to.exists() {
        return Ok(());
    }
    fs::rename(&from, &to).map_err(|e| EditError::File(from, e))?;
    for (path, image) in std::iter::zip(ids, images) {
        fs::write(&path, image).map_err(|e| EditError::File(path, e))?;
    }
    Ok(())
}

/// Makes CRIU restore these pages of a process, by address. [`use_templates`] has edited its images.
///
/// # Errors
/// Returns an error when an image is missing or malformed, or cannot be written.
pub(super) fn make_eager(dir: &Path, pid: i32, pages: &[(PageIndex, Vec<u8>)]) -> Result<(), EditError> {
    let path = dir.join(format!("pagemap-{pid}.img"));
    let addresses: Vec<_> = pages.iter().map(|(page, _)| *page).collect();
    let (id, image, order) = with_eager_pages(&read(path.clone())?, &addresses).map_err(|cause| EditError::Image {
        name: format!("pagemap-{pid}.img"),
        cause,
    })?;
    let pages_path = dir.join(format!("pages-{id}.img"));
    let before = read(pages_path.clone())?;
    let mut after = Vec::with_capacity(order.len() * PAGE as usize);
    for from in order {
        let bytes = match from {
            PageFrom::Image(at) => before.get((at * PAGE) as usize..((at + 1) * PAGE) as usize),
            PageFrom::Added(index) => Some(pages[index].1.as_slice()),
        };
        let ended = || io::Error::new(io::ErrorKind::UnexpectedEof, "it has fewer pages than its pagemap says");
        after.extend_from_slice(bytes.ok_or_else(|| EditError::File(pages_path.clone(), ended()))?);
    }
    fs::write(&pages_path, after).map_err(|e| EditError::File(pages_path, e))?;
    fs::write(&path, image).map_err(|e| EditError::File(path, e))
}

/// Leaves only the pages `kept` in a pages image, and returns the pages `taken`.
fn take_pages(path: &Path, taken: &[EagerRun], kept: &[EagerRun]) -> Result<Vec<u8>, EditError> {
    let pages = read(path.to_owned())?;
    let gather = |runs: &[EagerRun]| {
        let slices = runs.iter().map(|run| {
            let (start, length) = ((run.at * PAGE) as usize, (run.pages * PAGE) as usize);
            pages.get(start..start + length)
        });
        let slices = slices.collect::<Option<Vec<_>>>();
        slices.map(|s| s.concat()).ok_or_else(|| {
            let ended = io::Error::new(io::ErrorKind::UnexpectedEof, "it has fewer pages than its pagemap says");
            EditError::File(path.to_owned(), ended)
        })
    };
    let (taken, kept) = (gather(taken)?, gather(kept)?);
    fs::write(path, kept).map_err(|e| EditError::File(path.to_owned(), e))?;
    Ok(taken)
}

/// Returns the memory addresses that the kernel touches before the pager can take faults on them. It does so for CRIU
/// (restartable sequences), or for whoever asks for the process's arguments. Their pages must be in the template
/// before, or CRIU must restore them.
///
/// # Errors
/// Returns an error when an image cannot be read.
pub(crate) fn touched_early(dir: &Path) -> Result<Vec<u64>, EditError> {
    let mut addresses = Vec::new();
    let listed = |e| EditError::File(dir.to_owned(), e);
    for entry in fs::read_dir(dir).map_err(listed)? {
        let name = entry.map_err(listed)?.file_name().to_string_lossy().into_owned();
        if !name.ends_with(".img") {
            continue;
        }
        if name.starts_with("mm-") {
            let areas = argument_areas(&read(dir.join(&name))?).map_err(|cause| EditError::Image { name, cause })?;
            let pages = areas.into_iter().filter(|area| !area.is_empty());
            addresses
                .extend(pages.flat_map(|area| (area.start / PAGE..area.end.div_ceil(PAGE)).map(|page| page * PAGE)));
            continue;
        }
        if !name.starts_with("core-") {
            continue;
        }
        let image = read(dir.join(&name))?;
        let area = rseq_area(&image).map_err(|cause| EditError::Image { name, cause })?;
        // An area may extend into a second page.
        addresses.extend(
            area.into_iter()
                .flat_map(|(at, size)| [at, at.saturating_add(u64::from(size.max(1)) - 1)]),
        );
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use rekindle_criu::images::TemplateArea;

    use super::*;

    #[test]
    fn between_pages_that_were_written_lie_those_that_were_not() {
        let area = |first, pages, at| FoldedArea {
            area: TemplateArea {
                first: PageIndex(first),
                pages,
                at,
            },
            file: "/lib.so".to_owned(),
            offset: 0,
        };
        let run = |first| EagerRun {
            first: PageIndex(first),
            pages: 1,
            at: 0,
        };
        let areas = [area(100, 4, 0), area(200, 1, 4)];
        let written = [[0xa0; PAGE as usize], [0xa1; PAGE as usize], [0xa2; PAGE as usize]].concat();
        let (folded, unwritten) = fold(&areas, &[run(100), run(103), run(200)], &written);
        let first_bytes: Vec<u8> = folded.chunks_exact(PAGE as usize).map(|page| page[0]).collect();
        assert_eq!(first_bytes, [0xa0, 0, 0, 0xa1, 0xa2]);
        assert_eq!(unwritten, [PageIndex(101), PageIndex(102)]);
    }
}

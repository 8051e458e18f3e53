//! Edits a snapshot's images on this host so that its memory is mapped from the template.

use std::borrow::Cow;
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

use super::image_set::{Directory, ImageSet};
use super::notes::PipeNote;
use super::originals::is_of_a_layer;

/// Maximum number of processes restored from templates, because each one costs init a descriptor. Of more there are no
/// copies.
pub(crate) const MAPPED_MAX: usize = rekindle_restore_program::PROCESSES_MAX;

/// Name of the image of all open files.
const FILES: &str = "files.img";

/// Name of the image that describes the dump.
const INVENTORY: &str = "inventory.img";

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

fn read<'a>(images: &'a impl ImageSet, name: &str) -> Result<Cow<'a, [u8]>, EditError> {
    images.read(name).map_err(|e| EditError::File(images.path(name), e))
}

fn write(images: &mut impl ImageSet, name: &str, bytes: Vec<u8>) -> Result<(), EditError> {
    let written = images.write(name, bytes);
    written.map_err(|e| EditError::File(images.path(name), e))
}

/// Returns the names of the images that begin with this.
fn names(images: &impl ImageSet, prefix: &str) -> Result<Vec<String>, EditError> {
    let names = images.names().map_err(|e| EditError::File(images.path(""), e))?;
    let begin = names.into_iter().filter(|name| name.starts_with(prefix));
    Ok(begin.filter(|name| name.ends_with(".img")).collect())
}

/// A process's memory as it will be restored.
#[derive(Debug, Default)]
pub(super) struct EditedMemory {
    /// The mappings of its template; empty if it is restored without one.
    pub(super) layout: TemplateLayout,
    /// The bytes of the layout's folded areas, one after the other.
    pub(super) folded: Vec<u8>,
    /// Pages of these areas that were not written and are zero in `folded`. Their bytes are in their files.
    pub(super) unwritten: Vec<PageIndex>,
}

/// Replaces images so that processes are restored from templates where possible. Files at the paths `written` are not
/// those of a layer. Returns the outcome for each process, in order.
///
/// # Errors
/// Returns an error when an image is missing or malformed. Then either no image was replaced, or the images are
/// unusable.
pub(super) fn use_templates(
    set: &mut impl ImageSet,
    processes: &[Process],
    written: &HashSet<PathBuf>,
) -> Result<Vec<EditedMemory>, EditError> {
    let name = |kind: &str, pid: u32| format!("{kind}-{pid}.img");
    let paths: Vec<_> = (FIRST_TEMPLATE..).map(held_path).take(processes.len()).collect();
    let held = processes
        .iter()
        .map(|process| move |pages: Range<PageIndex>| process.page_map.holds_any(pages.start, pages.end));
    let held: Vec<_> = held.collect();
    let edited = {
        let both = |p: &Process| Ok((read(set, &name("mm", p.pid))?, read(set, &name("pagemap", p.pid))?));
        let images = processes.iter().map(both).collect::<Result<Vec<_>, EditError>>()?;
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
        let edited = map_templates(&read(set, FILES)?, &asked, lasting);
        edited.map_err(|cause| EditError::Image {
            name: FILES.to_owned(),
            cause,
        })?
    };
    let mut done = Vec::with_capacity(processes.len());
    let mut edits = edited.processes.into_iter();
    for process in processes {
        let Some(edit) = edits.next().flatten() else {
            done.push(EditedMemory::default());
            continue;
        };
        write(set, &name("mm", process.pid), edit.mm)?;
        let (folded, unwritten) = if edit.folded.is_empty() {
            Default::default()
        } else {
            write(set, &name("pagemap", process.pid), edit.pagemap)?;
            let pages = format!("pages-{}.img", edit.pages_id);
            let (folded, kept) = {
                let image = read(set, &pages)?;
                let fewer = || EditError::File(set.path(&pages), fewer_pages());
                let folded = fold(&edit.layout.folded, &edit.folded, &image).ok_or_else(fewer)?;
                let kept = edit.kept.iter().map(|run| pages_at(run.at, run.pages, &image));
                (folded, kept.collect::<Option<Vec<_>>>().ok_or_else(fewer)?.concat())
            };
            write(set, &pages, kept)?;
            let taken: u64 = edit.folded.iter().map(|run| run.pages).sum();
            if folded.0.len() as u64 != (taken + folded.1.len() as u64) * PAGE {
                let why = io::Error::new(io::ErrorKind::InvalidData, "its pages are not those of the mappings");
                return Err(EditError::File(set.path(&name("pagemap", process.pid)), why));
            }
            folded
        };
        done.push(EditedMemory {
            layout: edit.layout,
            folded,
            unwritten,
        });
    }
    write(set, FILES, edited.files)?;
    Ok(done)
}

/// Returns `pages` pages of a pages image, from page `at` on. `None` if it has fewer.
fn pages_at(at: u64, pages: u64, image: &[u8]) -> Option<&[u8]> {
    let start = usize::try_from(at.checked_mul(PAGE)?).ok()?;
    let length = usize::try_from(pages.checked_mul(PAGE)?).ok()?;
    image.get(start..start.checked_add(length)?)
}

/// Builds the bytes of folded areas from the pages of `runs`, by address, in a pages image. Also returns the pages that
/// are in no run and are zero. `None` if the image has fewer pages.
fn fold(areas: &[FoldedArea], runs: &[EagerRun], image: &[u8]) -> Option<(Vec<u8>, Vec<PageIndex>)> {
    let mut written = runs
        .iter()
        .flat_map(|run| (0..run.pages).map(move |number| (run.first.0 + number, run.at + number)))
        .peekable();
    let pages: u64 = areas.iter().map(|a| a.area.pages).sum();
    let (mut folded, mut unwritten) = (Vec::with_capacity((pages * PAGE) as usize), Vec::new());
    for page in areas.iter().flat_map(|a| a.area.first.0..a.area.end().0) {
        match written.next_if(|(number, _)| *number == page) {
            Some((_, at)) => folded.extend_from_slice(pages_at(at, 1, image)?),
            None => {
                folded.resize(folded.len() + PAGE as usize, 0);
                unwritten.push(PageIndex(page));
            }
        }
    }
    Some((folded, unwritten))
}

/// Gives the outputs the names that they have in all images restored by a prestarted CRIU. If another pipe has one of
/// these names, all keep theirs.
///
/// # Errors
/// Returns an error when the image is missing or malformed, or cannot be written.
pub(crate) fn name_outputs(images: &mut impl ImageSet, notes: &mut [PipeNote]) -> Result<(), EditError> {
    let named = |note: &PipeNote| {
        let at = OUTPUT_STREAMS.iter().position(|stream| *stream == note.stream)?;
        Some((pipe_number(&note.key)?, OUTPUT_PIPES[at]))
    };
    let numbers: HashMap<_, _> = notes.iter().filter_map(named).collect();
    let renumbered = renumber_pipes(&read(images, FILES)?, &numbers).map_err(|cause| EditError::Image {
        name: FILES.to_owned(),
        cause,
    })?;
    let Some(image) = renumbered.filter(|_| numbers.len() == notes.len()) else {
        return Ok(());
    };
    write(images, FILES, image)?;
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
pub(crate) fn become_user(images: &mut impl ImageSet, from: u32, to: u32) -> Result<(), EditError> {
    if from == to {
        return Ok(());
    }
    for name in names(images, "core-")? {
        let edited = with_user(&read(images, &name)?, from, to);
        let edited = edited.map_err(|cause| EditError::Image {
            name: name.clone(),
            cause,
        })?;
        let stranger = || io::Error::new(io::ErrorKind::InvalidData, format!("a thread is not user {from}"));
        let image = edited.ok_or_else(|| EditError::File(images.path(&name), stranger()))?;
        write(images, &name, image)?;
    }
    Ok(())
}

/// Keeps CRIU's end from ending the function: CRIU is the parent of the first process until then. Init, its parent
/// otherwise, outlives it.
///
/// # Errors
/// Returns an error when an image is missing or malformed, or cannot be written.
pub(crate) fn outlive_criu(images: &mut impl ImageSet, verified: &Verified) -> Result<(), EditError> {
    let first = verified
        .processes
        .iter()
        .find(|process| process.tree.pid == FUNCTION_PID.cast_unsigned());
    for thread in first.iter().flat_map(|process| &process.threads) {
        let state = thread.core.thread_core.as_ref();
        if state.and_then(|state| state.pdeath_sig).unwrap_or(0) == 0 {
            continue;
        }
        let name = format!("core-{}.img", thread.tid);
        let edited = without_death_signal(&read(images, &name)?);
        let edited = edited.map_err(|cause| EditError::Image {
            name: name.clone(),
            cause,
        })?;
        write(images, &name, edited)?;
    }
    Ok(())
}

/// Has CRIU bind UNIX sockets with relative names by their whole paths. It would change, as root, to a directory that
/// the images name. A restore program binds them by their own names.
///
/// # Errors
/// Returns an error when the image is missing or malformed, or cannot be written.
pub(crate) fn bind_by_whole_paths(images: &mut impl ImageSet, verified: &Verified) -> Result<(), EditError> {
    let sockets = verified
        .files
        .iter()
        .filter_map(|(id, file)| Some((*id, file.usk.as_deref()?)));
    let relative = sockets.filter(|(_, socket)| socket.name_dir.is_some());
    let paths: HashMap<u32, Vec<u8>> = relative.map(|(id, socket)| (id, socket.path())).collect();
    if paths.is_empty() {
        return Ok(());
    }
    let edited = name_unix_sockets(&read(images, FILES)?, &paths).map_err(|cause| EditError::Image {
        name: FILES.to_owned(),
        cause,
    })?;
    write(images, FILES, edited)
}

/// Removes from a dump what CRIU was given for it, and what it contains only because CRIU ran outside the sandbox:
/// other control groups, and the host's user namespace. The CRIU that restores it runs inside.
///
/// # Errors
/// Returns an error when an image is missing or malformed, or cannot be written.
pub(crate) fn forget_outside(dir: &Path) -> Result<(), EditError> {
    let mut images = Directory(dir);
    for name in images.names().map_err(|e| EditError::File(dir.to_owned(), e))? {
        let is_outside = name == "cgroup.img" || name.starts_with("userns-");
        if is_outside || name == PROBE_FILE || name == KNOWN_PATHS {
            let path = dir.join(&name);
            fs::remove_file(&path).map_err(|e| EditError::File(path, e))?;
        }
    }
    let ids = format!("ids-{FUNCTION_PID}.img");
    let edited = in_users_of(&read(&images, INVENTORY)?, &read(&images, &ids)?);
    let edited = edited.map_err(|cause| EditError::Image { name: ids, cause })?;
    write(&mut images, INVENTORY, edited)
}

/// Returns the user of the function's first process. It is either `earlier`, the host user of functions before each
/// sandbox had ids of its own, or their present user.
///
/// # Errors
/// Returns an error when the image is missing or malformed.
pub(super) fn user_of(images: &impl ImageSet, earlier: u32) -> Result<u32, EditError> {
    let name = format!("core-{FUNCTION_PID}.img");
    let is_earlier = with_user(&read(images, &name)?, earlier, earlier);
    let is_earlier = is_earlier.map_err(|cause| EditError::Image { name, cause })?;
    Ok(is_earlier.map_or(FUNCTION_UID, |_| earlier))
}

/// Returns whether the function's first process is given those below it whose parent ends.
///
/// # Errors
/// Returns an error when its image is missing or malformed.
pub(crate) fn adopts_orphans(dir: &Path) -> Result<bool, EditError> {
    let name = format!("core-{FUNCTION_PID}.img");
    let adopts = images::adopts_orphans(&read(&Directory(dir), &name)?);
    adopts.map_err(|cause| EditError::Image { name, cause })
}

/// Returns the clocks of a dump's processes.
///
/// # Errors
/// Returns an error when their image is missing or malformed.
pub(crate) fn clocks(images: &impl ImageSet) -> Result<Clocks, EditError> {
    let found = names(images, "timens-")?.pop();
    let name = found.unwrap_or_else(|| "timens-0.img".to_owned());
    let times = clock_times(&read(images, &name)?).map_err(|cause| EditError::Image { name, cause })?;
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
    let mut images = Directory(dir);
    let ids = names(&images, "ids-")?;
    let edited = {
        let read_ids = ids.iter().map(|name| Ok(read(&images, name)?.into_owned()));
        let read_ids = read_ids.collect::<Result<Vec<_>, EditError>>()?;
        in_criu_s_time(&read(&images, INVENTORY)?, &read_ids)
    };
    let edited = edited.map_err(|cause| EditError::Image {
        name: "ids".to_owned(),
        cause,
    })?;
    let Some(OtherTime { clocks, ids: edited }) = edited else {
        return Ok(());
    };
    let (from, to) = (dir.join(format!("timens-{clocks}.img")), dir.join("timens-0.img"));
    if to.exists() {
        return Ok(());
    }
    fs::rename(&from, &to).map_err(|e| EditError::File(from, e))?;
    std::iter::zip(ids, edited).try_for_each(|(name, image)| write(&mut images, &name, image))
}

/// Makes CRIU restore these pages of a process, by address. [`use_templates`] has edited its images.
///
/// # Errors
/// Returns an error when an image is missing or malformed, or cannot be written.
pub(super) fn make_eager(
    images: &mut impl ImageSet,
    pid: i32,
    pages: &[(PageIndex, Vec<u8>)],
) -> Result<(), EditError> {
    let name = format!("pagemap-{pid}.img");
    let addresses: Vec<_> = pages.iter().map(|(page, _)| *page).collect();
    let eager = with_eager_pages(&read(images, &name)?, &addresses);
    let (id, image, order) = eager.map_err(|cause| EditError::Image {
        name: name.clone(),
        cause,
    })?;
    let pages_name = format!("pages-{id}.img");
    let mut after = Vec::with_capacity(order.len() * PAGE as usize);
    {
        let before = read(images, &pages_name)?;
        for from in order {
            let bytes = match from {
                PageFrom::Image(at) => before.get((at * PAGE) as usize..((at + 1) * PAGE) as usize),
                PageFrom::Added(index) => Some(pages[index].1.as_slice()),
            };
            after.extend_from_slice(bytes.ok_or_else(|| EditError::File(images.path(&pages_name), fewer_pages()))?);
        }
    }
    write(images, &pages_name, after)?;
    write(images, &name, image)
}

fn fewer_pages() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "it has fewer pages than its pagemap says")
}

/// Returns the memory addresses that the kernel touches before the pager can take faults on them. It does so for CRIU
/// (restartable sequences), or for whoever asks for the process's arguments. Their pages must be in the template
/// before, or CRIU must restore them.
///
/// # Errors
/// Returns an error when an image cannot be read.
pub(crate) fn touched_early(images: &impl ImageSet) -> Result<Vec<u64>, EditError> {
    let mut addresses = Vec::new();
    for name in names(images, "mm-")? {
        let areas = argument_areas(&read(images, &name)?).map_err(|cause| EditError::Image { name, cause })?;
        let pages = areas.into_iter().filter(|area| !area.is_empty());
        addresses.extend(pages.flat_map(|area| (area.start / PAGE..area.end.div_ceil(PAGE)).map(|page| page * PAGE)));
    }
    for name in names(images, "core-")? {
        let area = rseq_area(&read(images, &name)?).map_err(|cause| EditError::Image { name, cause })?;
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
        let run = |first, at| EagerRun {
            first: PageIndex(first),
            pages: 1,
            at,
        };
        let areas = [area(100, 4, 0), area(200, 1, 4)];
        let image = [0xa0_u8, 0xff, 0xa1, 0xa2].map(|byte| [byte; PAGE as usize]).concat();
        let runs = [run(100, 0), run(103, 2), run(200, 3)];
        let (folded, unwritten) = fold(&areas, &runs, &image).unwrap();
        let first_bytes: Vec<u8> = folded.chunks_exact(PAGE as usize).map(|page| page[0]).collect();
        assert_eq!(first_bytes, [0xa0, 0, 0, 0xa1, 0xa2]);
        assert_eq!(unwritten, [PageIndex(101), PageIndex(102)]);
        assert!(
            fold(&areas, &runs, &image[..image.len() - 1]).is_none(),
            "it has fewer pages"
        );
    }
}

//! Edits a snapshot's images on this host so that its memory is mapped from the template.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rekindle_init::protocol::held_path;
use rekindle_snapshotter::Process;
use rekindle_snapshotter::images::{ImageError, TemplateLayout, TemplateProcess, map_templates, rseq_area};

/// Processes that are restored from templates at most: as many descriptors go to init. More are restored the plain way.
pub(super) const MAPPED_MAX: usize = 16;

/// Where the templates begin among the descriptors that init holds for CRIU: in the order of the processes, after the image
/// directory.
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
        /// The image, or the first of those edited together.
        name: String,
        /// Why.
        #[source]
        cause: ImageError,
    },
}

fn read(path: PathBuf) -> Result<Vec<u8>, EditError> {
    fs::read(&path).map_err(|e| EditError::File(path, e))
}

/// Replaces the images in `dir`: processes that can be are restored from templates. Answers their layouts, in order; an
/// empty one for a process that is restored the plain way.
///
/// # Errors
/// When an image is missing or malformed; none is replaced then, or the directory cannot be used any more.
pub(super) fn use_templates(dir: &Path, processes: &[Process]) -> Result<Vec<TemplateLayout>, EditError> {
    let mm_path = |pid: u32| dir.join(format!("mm-{pid}.img"));
    let paths: Vec<_> = (FIRST_TEMPLATE..).map(held_path).take(processes.len()).collect();
    let images = processes.iter().map(|p| read(mm_path(p.pid)));
    let images = images.collect::<Result<Vec<_>, _>>()?;
    let files_path = dir.join("files.img");
    let files = read(files_path.clone())?;
    let asked: Vec<_> = std::iter::zip(processes, std::iter::zip(&images, &paths))
        .take(MAPPED_MAX)
        .map(|(process, (mm, path))| TemplateProcess {
            mm,
            page_map: &process.page_map,
            path,
        })
        .collect();
    let edited = map_templates(&files, &asked).map_err(|cause| EditError::Image {
        name: "files.img".to_owned(),
        cause,
    })?;
    let write = |path: PathBuf, bytes: &[u8]| fs::write(&path, bytes).map_err(|e| EditError::File(path, e));
    let mut layouts = vec![TemplateLayout::default(); processes.len()];
    for ((process, layout), edited) in processes.iter().zip(&mut layouts).zip(edited.processes) {
        if let Some((mm, found)) = edited {
            write(mm_path(process.pid), &mm)?;
            *layout = found;
        }
    }
    write(files_path, &edited.files)?;
    Ok(layouts)
}

/// Addresses in memory that the kernel touches before the pager can take faults on it: they must be in the template before.
///
/// # Errors
/// When a thread's image cannot be read.
pub(super) fn touched_early(dir: &Path) -> Result<Vec<u64>, EditError> {
    let mut addresses = Vec::new();
    let listed = |e| EditError::File(dir.to_owned(), e);
    for entry in fs::read_dir(dir).map_err(listed)? {
        let name = entry.map_err(listed)?.file_name().to_string_lossy().into_owned();
        if !name.starts_with("core-") || !name.ends_with(".img") {
            continue;
        }
        let image = read(dir.join(&name))?;
        let area = rseq_area(&image).map_err(|cause| EditError::Image { name, cause })?;
        // An area may reach into a second page.
        addresses.extend(
            area.into_iter()
                .flat_map(|(at, size)| [at, at.saturating_add(u64::from(size.max(1)) - 1)]),
        );
    }
    Ok(addresses)
}

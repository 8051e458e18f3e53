//! Packs a function's folder as `tar.gz`. The same files always give the same bytes: sorted, without times and owners,
//! modes reduced to "executable or not". What `.fnignore` names (in the syntax of `.gitignore`) is left out.

use std::fs::{self, File};
use std::io::{self, Seek as _, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use flate2::{Compression, GzBuilder};
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use rekindle_wire::api::{SourceFile, SourceKind};
use rekindle_wire::function_config::FILE_NAME;
use rekindle_wire::{ApiError, ErrorCode};
use tar::{Builder, EntryType, Header, HeaderMode};

use crate::show;

const IGNORE_FILE: &str = ".fnignore";
/// Left out unless `.fnignore` takes them back with `!`: the platform installs dependencies itself.
const LEFT_BEHIND: [&str; 7] = [
    ".git",
    "__pycache__/",
    "*.pyc",
    ".venv/",
    "venv/",
    "/node_modules/",
    ".DS_Store",
];
/// Maximum size of all files. The platform has the same three limits; here they cost no upload.
const PLAIN_MAX: u64 = 4 << 30;
/// Maximum size of the archive.
const PACKED_MAX: u64 = 256 << 20;
/// Maximum number of files, folders and links.
const FILES_MAX: usize = 200_000;

/// A packed folder in an unnamed temporary file.
#[derive(Debug)]
pub(crate) struct Packed {
    /// The archive, positioned at its end.
    pub(super) file: File,
    pub(super) bytes: u64,
    /// Number of files and links in it.
    pub(super) files: usize,
    /// Their total size.
    pub(super) plain_bytes: u64,
    /// What the platform will list of it: everything but the config.
    pub(crate) listing: Vec<SourceFile>,
}

/// Packs `folder`. Blocks.
pub(super) fn pack(folder: &Path) -> Result<Packed> {
    let ignored = ignore_rules(folder)?;
    let mut found = Vec::new();
    walk(folder, folder, &ignored, &mut found)?;
    found.sort();
    let found = found.into_iter().map(|inside| (folder.join(&inside), inside));
    packed(folder, found.collect())
}

/// Packs `config` and the layout of a container image, which workers look for in `image/`. Blocks.
pub(super) fn pack_image(config: &Path, layout: &Path) -> Result<Packed> {
    let mut found = Vec::new();
    walk(layout, layout, &Gitignore::empty(), &mut found)?;
    found.sort();
    let top = PathBuf::from("image");
    let mut files = vec![
        (config.to_owned(), PathBuf::from(FILE_NAME)),
        (layout.to_owned(), top.clone()),
    ];
    files.extend(
        found
            .into_iter()
            .map(|inside| (layout.join(&inside), top.join(&inside))),
    );
    packed(layout, files)
}

/// Packs files, each under its path in the folder.
fn packed(folder: &Path, found: Vec<(PathBuf, PathBuf)>) -> Result<Packed> {
    let mut file = tempfile::tempfile().context("no temporary file could be made")?;
    let (files, plain_bytes, listing) = write(folder, &found, &mut file)?;
    let bytes = file.stream_position().context("the packed folder cannot be measured")?;
    if bytes > PACKED_MAX {
        bail!(too_large(
            folder,
            &format!("more than {} when packed", show::bytes(PACKED_MAX))
        ));
    }
    Ok(Packed {
        file,
        bytes,
        files,
        plain_bytes,
        listing,
    })
}

fn ignore_rules(folder: &Path) -> Result<Gitignore> {
    let mut rules = GitignoreBuilder::new(folder);
    for line in LEFT_BEHIND {
        rules
            .add_line(None, line)
            .with_context(|| format!("\"{line}\" is not a pattern"))?;
    }
    let file = folder.join(IGNORE_FILE);
    if file.exists()
        && let Some(error) = rules.add(&file)
    {
        return Err(error).with_context(|| format!("{}: a line is not a pattern", file.display()));
    }
    rules
        .build()
        .with_context(|| format!("{}: the patterns cannot be used", file.display()))
}

/// Collects paths inside `top`, including directories.
fn walk(top: &Path, folder: &Path, ignored: &Gitignore, found: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("{}: the folder cannot be read", folder.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("{}: the folder cannot be read", folder.display()))?;
        let path = entry.path();
        let kind = entry
            .file_type()
            .with_context(|| format!("{}: cannot be read", path.display()))?;
        let inside = path
            .strip_prefix(top)
            .with_context(|| format!("{}: lies outside the folder", path.display()))?
            .to_owned();
        if ignored.matched(&inside, kind.is_dir()).is_ignore() || inside == Path::new(IGNORE_FILE) {
            continue;
        }
        if found.len() >= FILES_MAX {
            bail!(too_large(top, &format!("more than {FILES_MAX} files")));
        }
        found.push(inside);
        if kind.is_dir() {
            walk(top, &path, ignored, found)?;
        }
    }
    Ok(())
}

/// Writes the archive. Returns the number of files, the bytes of content, and a listing.
fn write(top: &Path, found: &[(PathBuf, PathBuf)], out: &mut File) -> Result<(usize, u64, Vec<SourceFile>)> {
    let gzip = GzBuilder::new()
        .mtime(0)
        .operating_system(255)
        .write(out, Compression::fast());
    let mut archive = Builder::new(gzip);
    let (mut files, mut plain, mut listing) = (0, 0, Vec::new());
    for (path, inside) in found {
        let meta = fs::symlink_metadata(path).with_context(|| format!("{}: cannot be read", path.display()))?;
        let mut header = Header::new_gnu();
        header.set_metadata_in_mode(&meta, HeaderMode::Deterministic);
        header.set_mtime(0);
        if meta.is_dir() {
            header.set_mode(0o755);
            append(&mut archive, &mut header, inside, io::empty())?;
            listing.push(listed(inside, SourceKind::Folder, String::new()));
        } else if meta.is_file() {
            plain += meta.len();
            files += 1;
            if plain > PLAIN_MAX {
                bail!(too_large(top, &format!("more than {}", show::bytes(PLAIN_MAX))));
            }
            let (mode, kind) = match meta.permissions().mode() & 0o111 {
                0 => (0o644, SourceKind::File),
                _ => (0o755, SourceKind::Executable),
            };
            header.set_mode(mode);
            let content = File::open(path).with_context(|| format!("{}: cannot be read", path.display()))?;
            let mut content = Hashed(content, blake3::Hasher::new());
            append(&mut archive, &mut header, inside, &mut content)?;
            if inside != Path::new(FILE_NAME) {
                listing.push(listed(inside, kind, content.1.finalize().to_hex().to_string()));
            }
        } else if meta.is_symlink() {
            files += 1;
            let target = fs::read_link(path).with_context(|| format!("{}: cannot be read", path.display()))?;
            if !stays_inside(inside, &target) {
                bail!(
                    "{}: the link to {} leads out of the folder: copy the file, or name the link in {IGNORE_FILE}",
                    path.display(),
                    target.display()
                );
            }
            header.set_entry_type(EntryType::Symlink);
            header.set_size(0);
            header.set_mode(0o777);
            archive
                .append_link(&mut header, inside, &target)
                .with_context(|| format!("{}: cannot be packed", path.display()))?;
            let digest = blake3::hash(target.as_os_str().as_bytes());
            listing.push(listed(inside, SourceKind::Link, digest.to_hex().to_string()));
        } else {
            bail!(
                "{}: neither a file, a folder nor a link: name it in {IGNORE_FILE}",
                path.display()
            );
        }
    }
    let gzip = archive.into_inner().context("the archive cannot be written")?;
    gzip.finish()
        .and_then(Write::flush)
        .context("the archive cannot be written")?;
    Ok((files, plain, listing))
}

fn listed(inside: &Path, kind: SourceKind, digest: String) -> SourceFile {
    SourceFile {
        path: inside.to_string_lossy().into_owned(),
        kind,
        digest,
    }
}

/// A file that is hashed as it is read.
struct Hashed(File, blake3::Hasher);

impl io::Read for Hashed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.0.read(buffer)?;
        self.1.update(&buffer[..n]);
        Ok(n)
    }
}

fn append<W: Write>(
    archive: &mut Builder<W>,
    header: &mut Header,
    inside: &Path,
    content: impl io::Read,
) -> Result<()> {
    archive
        .append_data(header, inside, content)
        .with_context(|| format!("{}: cannot be packed", inside.display()))
}

/// Whether a link at `inside` with this target stays in the folder, judged by its text alone.
fn stays_inside(inside: &Path, target: &Path) -> bool {
    let mut depth = inside.components().count().saturating_sub(1);
    for part in target.components() {
        match part {
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::ParentDir if depth > 0 => depth -= 1,
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return false,
        }
    }
    true
}

fn too_large(folder: &Path, what: &str) -> anyhow::Error {
    let message = format!(
        "{} holds {what}: leave out what the function does not need with {IGNORE_FILE}",
        folder.display()
    );
    ApiError::new(ErrorCode::TooLarge, message).into()
}

#[cfg(test)]
mod tests;

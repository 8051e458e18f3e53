//! Packs a function's files as a tar. Its bytes depend only on names, contents, link targets and the execute bit, in an
//! image on all permission bits and extended attributes. So the same input gives the same digest on every worker.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::path::{Path, PathBuf};

use tar::{Builder, EntryType, Header};

use super::BuildLimits;
use rekindle_confined::attributes::{self, Attribute};
use rekindle_confined::links::{self, LinkError};
use rekindle_snapshotter::layer::index::{self, Entry, Kind, MTIME_UNIX_S};
use rekindle_wire::function_config::ByteSize;

/// Size of a tar block in bytes.
const TAR_BLOCK: u64 = 512;
/// Permission bits of a folder's directories.
const MODE_DIRECTORY: u16 = 0o755;

/// Why the tar could not be created.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// A file cannot be read.
    #[error("read {}", .0.display())]
    Read(PathBuf, #[source] io::Error),
    /// A path is longer than the kernel takes.
    #[error("the folder has paths longer than 4,096 bytes, below \"{0}…\": remove the directories that are so deep")]
    TooDeep(String),
    /// The tar cannot be written.
    #[error("write {}", .0.display())]
    Write(PathBuf, #[source] io::Error),
    /// A link leads outside.
    #[error(
        "link \"{}\" leads outside the function's folder: remove the package that has it, or vendor it",
        .0.display()
    )]
    Link(PathBuf),
    /// An entry is neither file, directory nor link.
    #[error("\"{}\" is neither file, directory nor link: remove it", .0.display())]
    Kind(PathBuf),
    /// There are too many bytes.
    #[error(
        "the function with its dependencies is larger than {}: remove dependencies it does not need, or have the \
         operator raise --build-size",
        ByteSize(*limit)
    )]
    TooLarge {
        /// The operator's `--build-size`, in bytes.
        limit: u64,
    },
    /// There are too many files.
    #[error(
        "the function with its dependencies has more than {limit} files: remove dependencies it does not need, or have \
         the operator raise --build-files"
    )]
    TooMany {
        /// The operator's `--build-files`.
        limit: u64,
    },
    /// The names of its files and the targets of its links are too long together.
    #[error(
        "the names of the image's files and the targets of its links are longer than {} together: shorten or remove \
         some",
        ByteSize(index::INDEX_MAX)
    )]
    Names,
}

/// Packs trees, each under its name in the tar. An empty name stands for the tar's root; directories above a name are
/// created. Then adds links, each with its target. Blocks.
pub(super) fn pack<'a>(
    trees: &[(&Path, &Path)],
    links: impl Iterator<Item = [&'a Path; 2]>,
    out: &Path,
    limits: &BuildLimits,
) -> Result<(), PackError> {
    let mut packing = Packing::new(out, limits, SymlinkScope::Inside)?;
    for (name, tree) in trees {
        let above: Vec<&Path> = name.ancestors().filter(|a| !a.as_os_str().is_empty()).collect();
        for directory in above.into_iter().rev() {
            packing.directory(directory, MODE_DIRECTORY, Vec::new())?;
        }
        packing.tree(tree, tree, name)?;
    }
    for [name, target] in links {
        packing.symbolic(name, target)?;
    }
    packing.finish()
}

/// Packs a root filesystem, with an index of its files. Links may lead anywhere, since the function's root contains
/// them. Blocks.
pub(super) fn pack_root(root: &Path, out: &Path, limits: &BuildLimits) -> Result<(), PackError> {
    let mut packing = Packing::new(out, limits, SymlinkScope::Anywhere)?;
    packing.tree(root, root, Path::new(""))?;
    packing.index()?;
    packing.finish()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SymlinkScope {
    /// Within the tree, which is mounted somewhere.
    Inside,
    /// Anywhere: the tree is a root.
    Anywhere,
}

struct CountingWriter {
    inner: BufWriter<File>,
    bytes: u64,
}

impl Write for CountingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

struct Packing<'a> {
    builder: Builder<CountingWriter>,
    out: &'a Path,
    limits: &'a BuildLimits,
    bytes: u64,
    files: u64,
    links: SymlinkScope,
    /// Names of files with several names, by device and inode number.
    named: HashMap<(u64, u64), PathBuf>,
    /// What was packed, for the index of a root.
    entries: Vec<Entry>,
    /// What is left of the bytes that names may take in memory.
    names: u64,
}

impl<'a> Packing<'a> {
    fn new(out: &'a Path, limits: &'a BuildLimits, links: SymlinkScope) -> Result<Self, PackError> {
        let file = File::create(out).map_err(|e| PackError::Write(out.to_owned(), e))?;
        Ok(Self {
            builder: Builder::new(CountingWriter {
                inner: BufWriter::with_capacity(1 << 20, file),
                bytes: 0,
            }),
            out,
            limits,
            bytes: 0,
            files: 0,
            links,
            named: HashMap::new(),
            entries: Vec::new(),
            names: index::INDEX_MAX,
        })
    }

    fn finish(self) -> Result<(), PackError> {
        let written = self.builder.into_inner().and_then(|mut w| w.flush());
        written.map_err(|e| PackError::Write(self.out.to_owned(), e))
    }

    fn tree(&mut self, root: &Path, directory: &Path, name: &Path) -> Result<(), PackError> {
        let wrong = |e: io::Error| match e.kind() {
            io::ErrorKind::InvalidFilename => PackError::TooDeep(name.to_string_lossy().chars().take(60).collect()),
            _ => PackError::Read(directory.to_owned(), e),
        };
        let entries = fs::read_dir(directory)
            .map_err(wrong)?
            .collect::<Result<Vec<_>, _>>()
            .map_err(wrong)?;
        let mut names: Vec<_> = entries.into_iter().map(|e| e.file_name()).collect();
        names.sort();
        for entry in names {
            let (path, name) = (directory.join(&entry), name.join(&entry));
            let metadata = fs::symlink_metadata(&path).map_err(wrong)?;
            if metadata.is_dir() {
                let attributes = self.attributes(&path)?;
                self.directory(&name, self.mode(&metadata), attributes)?;
                self.tree(root, &path, &name)?;
            } else if metadata.is_file() {
                self.file(&path, &name, &metadata)?;
            } else if metadata.is_symlink() {
                self.link(root, &path, &name)?;
            } else {
                return Err(PackError::Kind(name));
            }
        }
        Ok(())
    }

    /// Returns the permission bits that a file or directory has in the tar: in an image its own.
    fn mode(&self, metadata: &fs::Metadata) -> u16 {
        let own = metadata.permissions().mode();
        match self.links {
            // Of 12 bits.
            SymlinkScope::Anywhere => (own & 0o1777) as u16,
            SymlinkScope::Inside if metadata.is_dir() => MODE_DIRECTORY,
            SymlinkScope::Inside if own & 0o100 == 0 => 0o644,
            SymlinkScope::Inside => 0o755,
        }
    }

    fn header(&mut self, kind: EntryType, mode: u32, size: u64) -> Result<Header, PackError> {
        self.files += 1;
        self.bytes = self.bytes.saturating_add(size);
        if self.files > self.limits.files {
            return Err(PackError::TooMany {
                limit: self.limits.files,
            });
        }
        if self.bytes > self.limits.unpacked_bytes {
            return Err(PackError::TooLarge {
                limit: self.limits.unpacked_bytes,
            });
        }
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(MTIME_UNIX_S);
        header.set_size(size);
        Ok(header)
    }

    /// Returns the attributes that a file or directory has in the tar: in an image its own.
    fn attributes(&self, path: &Path) -> Result<Vec<Attribute>, PackError> {
        match self.links {
            SymlinkScope::Anywhere => attributes::of_file(path).map_err(|e| PackError::Read(path.to_owned(), e)),
            SymlinkScope::Inside => Ok(Vec::new()),
        }
    }

    /// Adds the records of the next entry's attributes.
    fn describe(&mut self, attributes: &[Attribute]) -> Result<(), PackError> {
        self.bytes = self.bytes.saturating_add(attributes::bytes(attributes) as u64);
        let records: Vec<_> = attributes.iter().map(attributes::record).collect();
        let records = records.iter().map(|(key, value)| (key.as_str(), value.as_bytes()));
        let appended = self.builder.append_pax_extensions(records);
        appended.map_err(|e| PackError::Write(self.out.to_owned(), e))
    }

    fn directory(&mut self, name: &Path, mode: u16, attributes: Vec<Attribute>) -> Result<(), PackError> {
        self.describe(&attributes)?;
        let mut header = self.header(EntryType::Directory, mode.into(), 0)?;
        let appended = self.builder.append_data(&mut header, name.join(""), io::empty());
        appended.map_err(|e| PackError::Write(self.out.to_owned(), e))?;
        self.note(name, Kind::Directory { mode }, attributes)
    }

    /// Keeps an entry for the index, if there will be one.
    fn note(&mut self, name: &Path, kind: Kind, attributes: Vec<Attribute>) -> Result<(), PackError> {
        if self.links == SymlinkScope::Inside {
            return Ok(());
        }
        let entry = Entry {
            path: name.as_os_str().as_bytes().to_vec(),
            kind,
            attributes,
        };
        self.remember(index::encoded_bytes(&entry))?;
        self.entries.push(entry);
        Ok(())
    }

    /// Takes so many bytes of those that names may have.
    fn remember(&mut self, bytes: usize) -> Result<(), PackError> {
        self.names = self.names.checked_sub(bytes as u64).ok_or(PackError::Names)?;
        Ok(())
    }

    /// Adds the index of what was packed, which must come last.
    fn index(&mut self) -> Result<(), PackError> {
        let wrong = |e| PackError::Write(self.out.to_owned(), e);
        let index = index::encode(&self.entries).map_err(|e| wrong(io::Error::other(e)))?;
        // It counts neither as a file of the image nor as its bytes.
        (self.files, self.bytes) = (0, 0);
        let mut header = self.header(EntryType::Regular, 0o644, index.len() as u64)?;
        let appended = self.builder.append_data(&mut header, index::INDEX, &index[..]);
        appended.map_err(|e| PackError::Write(self.out.to_owned(), e))
    }

    fn file(&mut self, path: &Path, name: &Path, metadata: &fs::Metadata) -> Result<(), PackError> {
        if metadata.nlink() > 1 && self.links == SymlinkScope::Anywhere {
            let same = (metadata.dev(), metadata.ino());
            if let Some(first) = self.named.get(&same).cloned() {
                return self.linked(EntryType::Link, name, &first);
            }
            self.remember(name.as_os_str().len())?;
            self.named.insert(same, name.to_owned());
        }
        let mode = self.mode(metadata);
        let attributes = self.attributes(path)?;
        self.describe(&attributes)?;
        let mut header = self.header(EntryType::Regular, mode.into(), metadata.len())?;
        let file = File::open(path).map_err(|e| PackError::Read(path.to_owned(), e))?;
        let appended = self.builder.append_data(&mut header, name, file);
        appended.map_err(|e| PackError::Write(self.out.to_owned(), e))?;
        let size = metadata.len();
        let kind = Kind::File {
            offset: self.builder.get_ref().bytes - size.next_multiple_of(TAR_BLOCK),
            size,
            mode,
        };
        self.note(name, kind, attributes)
    }

    fn link(&mut self, root: &Path, path: &Path, name: &Path) -> Result<(), PackError> {
        let target = fs::read_link(path).map_err(|e| PackError::Read(path.to_owned(), e))?;
        if self.links == SymlinkScope::Anywhere {
            return self.symbolic(name, &target);
        }
        let in_root = path.strip_prefix(root).unwrap_or(path);
        if !links::stays_inside(in_root, &target) {
            return Err(PackError::Link(name.to_owned()));
        }
        links::check(root, in_root).map_err(|e| match e {
            LinkError::Outside => PackError::Link(name.to_owned()),
            LinkError::Kernel(e) => PackError::Read(path.to_owned(), e),
        })?;
        self.symbolic(name, &target)
    }

    fn symbolic(&mut self, name: &Path, target: &Path) -> Result<(), PackError> {
        self.linked(EntryType::Symlink, name, target)
    }

    fn linked(&mut self, kind: EntryType, name: &Path, target: &Path) -> Result<(), PackError> {
        let mut header = self.header(kind, 0o777, 0)?;
        let appended = self.builder.append_link(&mut header, name, target);
        appended.map_err(|e| PackError::Write(self.out.to_owned(), e))?;
        let target = target.as_os_str().as_bytes().to_vec();
        let kind = match kind {
            EntryType::Link => Kind::Link(target),
            _ => Kind::Symlink(target),
        };
        self.note(name, kind, Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_take_too_much_memory_are_refused() {
        let tmp = tempfile::tempdir().unwrap();
        let root = tmp.path().join("root");
        fs::create_dir(&root).unwrap();
        let target = "t".repeat(4_000);
        for n in 0..20 {
            std::os::unix::fs::symlink(&target, root.join(n.to_string())).unwrap();
        }
        let (limits, out) = (BuildLimits::default(), tmp.path().join("tar"));
        let packed = |names: u64| {
            let mut packing = Packing::new(&out, &limits, SymlinkScope::Anywhere).unwrap();
            packing.names = names;
            packing.tree(&root, &root, Path::new("")).and_then(|()| packing.index())
        };
        packed(20 * 4_100).unwrap();
        assert!(matches!(packed(20 * 4_000), Err(PackError::Names)));
    }
}

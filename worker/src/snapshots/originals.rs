//! The files behind folded memory. A process that gives up its own copy of a library's data reads them again.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rekindle_confined::links;
use rekindle_init::files::WRITTEN;
use rekindle_pager::PAGE;
use rekindle_verify::Verified;
use rekindle_verify::messages::Remap;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use tar::EntryType;

use super::notes::FILES_ARCHIVE;

/// Where the function's own files are in its sandbox.
const APP: &str = "/app/";
/// Paths in a sandbox that belong to an instance and not to a layer.
const OWN: [&str; 5] = ["/tmp/", "/dev/", "/proc/", "/run/", "/sys/"];

/// Finds the directory of a layer on this host by its digest. It changes once a mounted layer is unpacked.
pub type LayerPlaces = Arc<dyn Fn(&str) -> PathBuf + Send + Sync>;

/// The layers of a snapshot's sandboxes.
pub struct Originals {
    /// Where layers are.
    pub places: LayerPlaces,
    /// The root filesystem's digest.
    pub rootfs: String,
    /// That of the function's own files; `None` if they are in the root filesystem.
    pub app: Option<String>,
}

/// Returns whether a file with this path in a sandbox belongs to a layer: then it is the same wherever the snapshot is
/// restored.
pub(super) fn is_of_a_layer(path: &str) -> bool {
    path.starts_with('/') && !OWN.iter().any(|own| path.starts_with(own))
}

/// Returns the paths in a sandbox that its function has written to a container image's root, from the archive among the
/// images in `dir`. The root itself is among them, if it is an image's. Blocks.
///
/// # Errors
/// Returns an error when the archive cannot be read.
pub(super) fn written(dir: &Path) -> io::Result<HashSet<PathBuf>> {
    let mut written = HashSet::new();
    for entry in tar::Archive::new(File::open(dir.join(FILES_ARCHIVE))?).entries_with_seek()? {
        if let Ok(below) = entry?.path()?.strip_prefix(WRITTEN) {
            written.insert(Path::new("/").join(below));
        }
    }
    Ok(written)
}

/// Returns the paths in a sandbox that files of a function have, from the archive among the images in `dir`. Blocks.
///
/// # Errors
/// Returns an error when the archive cannot be read.
pub(super) fn names(dir: &Path) -> io::Result<BTreeSet<Vec<u8>>> {
    let root = format!("{WRITTEN}/");
    let mut names = BTreeSet::new();
    for entry in tar::Archive::new(File::open(dir.join(FILES_ARCHIVE))?).entries_with_seek()? {
        let entry = entry?;
        // One of these says that the image's file is gone.
        if entry.header().entry_type() != EntryType::Char {
            let path = entry.path_bytes();
            let below = path.strip_prefix(root.as_bytes()).unwrap_or(&path);
            names.insert([b"/", below].concat());
        }
    }
    Ok(names)
}

/// Returns the paths of files that had lost their name, which lie in no layer though the paths may look like it. One is
/// a program that a function has written to its image's root, started and removed.
pub(super) fn nameless(verified: &Verified) -> impl Iterator<Item = PathBuf> {
    let file = |remap: &Remap| verified.files.get(&remap.orig_id)?.reg.as_ref();
    verified
        .remaps
        .iter()
        .filter_map(file)
        .map(|file| PathBuf::from(OsStr::from_bytes(&file.name)))
}

impl Originals {
    /// Returns the page of a file in the sandbox from byte `offset` on. Bytes after the end of the file are zero.
    ///
    /// # Errors
    /// Returns an error when it cannot be read.
    pub fn page(&self, path: &str, offset: u64) -> io::Result<Box<[u8]>> {
        let (layer, path) = match path.strip_prefix(APP).zip(self.app.as_ref()) {
            Some((below, app)) => (app, below),
            None => (&self.rootfs, path),
        };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, (self.places)(layer), flags | OFlags::DIRECTORY, Mode::empty())?;
        // A layer is not trusted, so its links are resolved inside it.
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let open = || openat2(&root, path, flags, Mode::empty(), resolve);
        let file = File::from(links::resolved(Errno::AGAIN, open)?);
        let mut page = vec![0; PAGE as usize].into_boxed_slice();
        let mut filled = 0;
        while filled < page.len() {
            match file.read_at(&mut page[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_the_file_s_and_zero_behind_its_end_and_no_link_leads_out() {
        let dir = tempfile::tempdir().unwrap();
        let (rootfs, app) = (dir.path().join("rootfs"), dir.path().join("app"));
        std::fs::create_dir_all(rootfs.join("lib")).unwrap();
        std::fs::create_dir(&app).unwrap();
        std::fs::write(dir.path().join("host"), "secret").unwrap();
        std::fs::write(rootfs.join("lib/a.so"), [7; 5000]).unwrap();
        std::fs::write(app.join("b.so"), [8; 10]).unwrap();
        std::os::unix::fs::symlink(dir.path().join("host"), app.join("c.so")).unwrap();
        let below = dir.path().to_owned();
        let originals = Originals {
            places: Arc::new(move |digest| below.join(digest)),
            rootfs: "rootfs".to_owned(),
            app: Some("app".to_owned()),
        };
        assert_eq!(originals.page("/lib/a.so", 0).unwrap()[..], [7; 4096]);
        let last = originals.page("/lib/a.so", 4096).unwrap();
        assert_eq!((last[903], last[904], last.len()), (7, 0, 4096));
        assert_eq!(
            originals.page("/app/b.so", 0).unwrap()[..11],
            [8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 0]
        );
        assert!(originals.page("/app/c.so", 0).is_err());
        assert!(originals.page("/lib/none.so", 0).is_err());
    }

    #[test]
    fn what_a_function_has_written_to_its_image_s_root_is_known_by_its_path() {
        let dir = tempfile::tempdir().unwrap();
        let archive = File::create(dir.path().join(FILES_ARCHIVE)).unwrap();
        let mut archive = tar::Builder::new(archive);
        for name in [
            "tmp/x",
            "run/root/upper",
            "run/root/upper/usr/lib/a.so",
            "run/root/upper/gone",
        ] {
            let mut header = tar::Header::new_gnu();
            header.set_size(0);
            if name.ends_with("gone") {
                header.set_entry_type(EntryType::Char);
            }
            archive.append_data(&mut header, name, io::empty()).unwrap();
        }
        archive.into_inner().unwrap();
        let expected = ["/", "/usr/lib/a.so", "/gone"].map(PathBuf::from);
        assert_eq!(written(dir.path()).unwrap(), HashSet::from(expected));
        let names = names(dir.path()).unwrap();
        let expected = ["/run/root/upper", "/tmp/x", "/usr/lib/a.so"];
        assert!(
            names.iter().map(|name| str::from_utf8(name).unwrap()).eq(expected),
            "{names:?}"
        );
    }

    #[test]
    fn only_files_of_layers_stay_the_same() {
        for (path, expected) in [
            ("/usr/lib/libc.so.6", true),
            ("/app/x.so", true),
            ("/tmp/x.so", false),
            ("anon", false),
        ] {
            assert_eq!(is_of_a_layer(path), expected, "{path}");
        }
    }
}

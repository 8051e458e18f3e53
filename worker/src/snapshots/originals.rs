//! The files behind folded memory. A process that gives up its own copy of a library's data reads them again.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use rekindle_pager::PAGE;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};

/// Where the function's own files are in its sandbox.
const APP: &str = "/app/";
/// Paths in a sandbox that belong to an instance and not to a layer.
const OWN: [&str; 5] = ["/tmp/", "/dev/", "/proc/", "/run/", "/sys/"];

/// The layers of a snapshot's sandboxes, on this host.
#[derive(Debug)]
pub struct Originals {
    /// The directory of the root filesystem.
    pub rootfs: PathBuf,
    /// The directory of the function's own files.
    pub app: PathBuf,
}

/// Returns whether a file with this path in a sandbox belongs to a layer: then it is the same wherever the snapshot is
/// restored.
pub(super) fn is_of_a_layer(path: &str) -> bool {
    path.starts_with('/') && !OWN.iter().any(|own| path.starts_with(own))
}

impl Originals {
    /// Returns the page of a file in the sandbox from byte `offset` on. Bytes after the end of the file are zero.
    ///
    /// # Errors
    /// Returns an error when it cannot be read.
    pub fn page(&self, path: &str, offset: u64) -> io::Result<Box<[u8]>> {
        let (layer, path) = match path.strip_prefix(APP) {
            Some(below) => (&self.app, below),
            None => (&self.rootfs, path),
        };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, layer, flags | OFlags::DIRECTORY, Mode::empty())?;
        // A layer is not trusted, so its links are resolved inside it.
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let file = File::from(openat2(&root, path, flags, Mode::empty(), resolve)?);
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
        let originals = Originals { rootfs, app };
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

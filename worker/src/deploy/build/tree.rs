//! Folders that an entry is looked for in: one on the disk, and the listing of one that is not uploaded yet.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path};

use rekindle_wire::api::{SourceFile, SourceKind};

/// The kind of what is at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A file that may not be executed.
    Plain,
    /// A file that may be executed.
    Executable,
    /// No file.
    Other,
}

/// A folder. Links in it are followed.
pub(super) trait Tree {
    /// What is at a path, if anything is.
    fn kind(&self, path: &Path) -> Option<Kind>;

    /// Names of what is in a directory.
    fn names(&self, directory: &Path) -> Vec<String>;

    /// Whether a file is at the path.
    fn has_file(&self, path: &Path) -> bool {
        matches!(self.kind(path), Some(Kind::Plain | Kind::Executable))
    }
}

pub(super) struct Directory<'a>(pub(super) &'a Path);

impl Tree for Directory<'_> {
    fn kind(&self, path: &Path) -> Option<Kind> {
        let metadata = fs::metadata(self.0.join(path)).ok()?;
        Some(match metadata.is_file() {
            true if metadata.permissions().mode() & 0o100 != 0 => Kind::Executable,
            true => Kind::Plain,
            false => Kind::Other,
        })
    }

    fn names(&self, directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(self.0.join(directory)).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect()
    }
}

/// The files of a folder. It does not say where links lead, so whatever is reached through one counts as there.
pub(super) struct Listing<'a>(pub(super) &'a [SourceFile]);

impl Tree for Listing<'_> {
    fn kind(&self, path: &Path) -> Option<Kind> {
        let path = path.strip_prefix(".").unwrap_or(path);
        let is_link = |part: &Path| {
            let mut links = self.0.iter().filter(|file| file.kind == SourceKind::Link);
            links.any(|file| Path::new(&file.path) == part)
        };
        if path.components().any(|part| part == Component::ParentDir) || path.ancestors().any(is_link) {
            return Some(Kind::Executable);
        }
        let listed = self.0.iter().find(|file| Path::new(&file.path) == path)?;
        Some(match listed.kind {
            SourceKind::File => Kind::Plain,
            SourceKind::Executable | SourceKind::Link => Kind::Executable,
            SourceKind::Folder => Kind::Other,
        })
    }

    fn names(&self, directory: &Path) -> Vec<String> {
        let within = |file: &&SourceFile| Path::new(&file.path).parent() == Some(directory);
        let names = self.0.iter().filter(within);
        let names = names.filter_map(|file| Path::new(&file.path).file_name()?.to_str());
        names.map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_listing_tells_what_its_folder_tells_and_trusts_links() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        fs::create_dir(at("pkg")).unwrap();
        fs::write(at("pkg/main.py"), "").unwrap();
        fs::write(at("run"), "").unwrap();
        fs::set_permissions(at("run"), Permissions::from_mode(0o755)).unwrap();
        symlink("run", at("link")).unwrap();
        symlink("pkg", at("linked")).unwrap();
        let files = [
            ("link", SourceKind::Link),
            ("linked", SourceKind::Link),
            ("pkg", SourceKind::Folder),
            ("pkg/main.py", SourceKind::File),
            ("run", SourceKind::Executable),
        ];
        let files = files.map(|(path, kind)| SourceFile {
            path: path.to_owned(),
            kind,
            digest: String::new(),
        });
        let (real, listed) = (Directory(dir.path()), Listing(&files));
        for path in ["pkg", "pkg/main.py", "./pkg/main.py", "run", "link", "none", "pkg/none"] {
            assert_eq!(listed.kind(Path::new(path)), real.kind(Path::new(path)), "{path}");
        }
        assert!(listed.has_file(Path::new("linked/main.py")) && real.has_file(Path::new("linked/main.py")));
        let sorted = |tree: &dyn Tree| {
            let mut names = tree.names(Path::new(""));
            names.sort();
            names
        };
        assert_eq!(sorted(&listed), sorted(&real));
        assert_eq!(listed.names(Path::new("pkg")), ["main.py"]);
    }
}

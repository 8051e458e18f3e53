//! Where certificates are found, and how changes are detected.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use super::pair::PairFiles;

/// Maximum number of pairs in a directory.
const PAIRS_MAX: usize = 1_000;
/// Name of the pair shown if none has the host's name; without it, the first by name.
pub(super) const DEFAULT: &str = "default";

/// The files of certificates for clients. The pair of two files is shown if none in the directory has the host's name.
#[derive(Debug, Clone, Default)]
pub struct CertificateFiles {
    /// A certificate with its chain, and its key: PEM.
    pub pair: Option<(PathBuf, PathBuf)>,
    /// A directory of pairs: `NAME.crt` beside `NAME.key`, or `NAME/fullchain.pem` with `NAME/privkey.pem`.
    pub directory: Option<PathBuf>,
    /// Authorities whose certificates clients may show: PEM.
    pub client_authorities: Option<PathBuf>,
}

/// Identity and state of a file. It differs if the file was replaced, or written since.
pub(super) type Stamp = Option<(u64, u64, i64, i64, u64)>;

impl CertificateFiles {
    /// All pairs, the default one first. Blocks.
    pub(super) fn pairs(&self) -> io::Result<Vec<PairFiles>> {
        let mut pairs = Vec::new();
        if let Some(directory) = &self.directory {
            for entry in fs::read_dir(directory)? {
                let path = entry?.path();
                pairs.extend(pair_at(&path));
            }
            pairs.sort();
            if pairs.len() > PAIRS_MAX {
                return Err(io::Error::other(format!("has more than {PAIRS_MAX} pairs")));
            }
            if let Some(at) = pairs.iter().position(|p| &*p.name == DEFAULT) {
                pairs[..=at].rotate_right(1);
            }
        }
        if let Some((certificate, key)) = &self.pair {
            pairs.retain(|p| &*p.name != DEFAULT);
            let name = Arc::from(DEFAULT);
            let (certificate, key) = (certificate.clone(), key.clone());
            pairs.insert(0, PairFiles { name, certificate, key });
        }
        Ok(pairs)
    }

    /// The files' location, for messages.
    pub(super) fn shown(&self) -> String {
        let certificate = self.pair.as_ref().map(|(certificate, _)| certificate);
        let places = certificate.into_iter().chain(&self.directory);
        places.map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ")
    }
}

/// The pair whose certificate is at a path of a directory of pairs.
fn pair_at(path: &Path) -> Option<PairFiles> {
    let of = |name: &std::ffi::OsStr, certificate: &Path, key: PathBuf| {
        Some(PairFiles {
            name: name.to_str()?.into(),
            certificate: certificate.to_owned(),
            key,
        })
    };
    if path.extension().is_some_and(|e| e == "crt") {
        return of(path.file_stem()?, path, path.with_extension("key"));
    }
    let certificate = path.join("fullchain.pem");
    match certificate.exists() {
        true => of(path.file_name()?, &certificate, path.join("privkey.pem")),
        false => None,
    }
}

/// Current stamp of a file. Blocks.
pub(super) fn stamp(path: &Path) -> Stamp {
    let m = fs::metadata(path).ok()?;
    Some((m.dev(), m.ino(), m.mtime(), m.mtime_nsec(), m.len()))
}

impl PairFiles {
    /// Current stamps of its files. Links are followed: certbot's point to another file after each renewal. Blocks.
    pub(super) fn stamps(&self) -> [Stamp; 2] {
        [&self.certificate, &self.key].map(|path| stamp(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_of_both_layouts_are_found_and_the_default_one_comes_first() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["b.crt", "a.crt", "a.key", "default.crt", "notes.txt"] {
            fs::write(at(name), "").unwrap();
        }
        fs::create_dir(at("c.example")).unwrap();
        fs::write(at("c.example/fullchain.pem"), "").unwrap();
        fs::create_dir(at("empty")).unwrap();
        let mut files = CertificateFiles {
            directory: Some(dir.path().to_owned()),
            ..CertificateFiles::default()
        };
        let names = |files: &CertificateFiles| -> Vec<String> {
            files.pairs().unwrap().iter().map(|p| p.name.to_string()).collect()
        };
        assert_eq!(names(&files), ["default", "a", "b", "c.example"]);
        let last = files.pairs().unwrap().pop().unwrap();
        assert_eq!(last.key, at("c.example/privkey.pem"));
        files.pair = Some((at("x.pem"), at("y.pem")));
        assert_eq!(names(&files), ["default", "a", "b", "c.example"]);
        assert_eq!(files.pairs().unwrap()[0].certificate, at("x.pem"));
        fs::remove_file(at("default.crt")).unwrap();
        files.pair = None;
        assert_eq!(names(&files), ["a", "b", "c.example"]);
    }

    #[test]
    fn a_file_that_is_written_or_replaced_is_another() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a.crt"), dir.path().join("a.key"));
        let pair = pair_at(&a).unwrap();
        let none = pair.stamps();
        fs::write(&a, "1").unwrap();
        fs::write(&b, "1").unwrap();
        let first = pair.stamps();
        assert_ne!(none, first);
        assert_eq!(first, pair.stamps());
        let new = dir.path().join("new");
        fs::write(&new, "2").unwrap();
        fs::rename(&new, &b).unwrap();
        assert_ne!(first, pair.stamps());
    }
}

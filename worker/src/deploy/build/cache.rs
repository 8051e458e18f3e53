//! Cache of installed dependencies, keyed by what they were installed from. The next deploy of the same list takes no
//! time.
//!
//! ```text
//! deps-cache/KEY/tree/…   what was installed      deps-cache/KEY/lock   its size; held (flock) while in use,
//! deps-cache/.new-…       being put or removed                          its time is the last use
//! ```

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use uuid::Uuid;

/// Age after which an unpinned list is resolved again.
const AGE_MAX: Duration = Duration::from_secs(24 * 3_600);

/// The cache's directory. Several builds use it at once.
#[derive(Debug, Clone)]
pub(super) struct DepsCache {
    directory: PathBuf,
    bytes_max: u64,
}

/// An installed tree. It is not removed as long as this lives.
#[derive(Debug)]
pub(super) struct CachedTree {
    pub(super) path: PathBuf,
    _in_use: File,
}

impl DepsCache {
    /// Opens the cache in `directory`, which only root may enter: installers run with fewer privileges.
    pub(super) fn open(directory: PathBuf, bytes_max: u64) -> io::Result<Self> {
        fs::create_dir_all(&directory)?;
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o700))?;
        Ok(Self { directory, bytes_max })
    }

    /// Returns the tree stored under `key`, if there is one that is young enough.
    pub(super) fn get(&self, key: &str) -> io::Result<Option<CachedTree>> {
        let entry = self.directory.join(key);
        let lock = match File::options().read(true).write(true).open(entry.join("lock")) {
            Ok(lock) => lock,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        // A lock that is unavailable or unlinked belongs to an entry that is being removed right now.
        if lock.try_lock_shared().is_err() || lock.metadata()?.nlink() == 0 {
            return Ok(None);
        }
        let path = entry.join("tree");
        let installed = fs::metadata(&path)?.modified()?;
        if SystemTime::now().duration_since(installed).unwrap_or_default() > AGE_MAX {
            return Ok(None);
        }
        lock.set_modified(SystemTime::now())?;
        Ok(Some(CachedTree { path, _in_use: lock }))
    }

    /// Moves `tree` (of `bytes`) into the cache, then removes the least recently used entries until all fits. Returns
    /// `None` when somebody else has just stored, or is removing, an entry with that key. `tree` is then unchanged.
    pub(super) fn put(&self, key: &str, tree: &Path, bytes: u64) -> io::Result<Option<CachedTree>> {
        let entry = self.directory.join(key);
        self.remove(&entry)?;
        let new = self.directory.join(format!(".new-{}", Uuid::new_v4().simple()));
        fs::create_dir(&new)?;
        let mut lock = File::create_new(new.join("lock"))?;
        lock.lock_shared()?;
        lock.write_all(bytes.to_string().as_bytes())?;
        fs::rename(tree, new.join("tree"))?;
        if fs::rename(&new, &entry).is_err() {
            fs::rename(new.join("tree"), tree)?;
            fs::remove_dir_all(&new)?;
            return Ok(None);
        }
        self.evict()?;
        Ok(Some(CachedTree {
            path: entry.join("tree"),
            _in_use: lock,
        }))
    }

    fn evict(&self) -> io::Result<()> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(&self.directory)?.flatten() {
            let lock = entry.path().join("lock");
            let used = fs::metadata(&lock).and_then(|m| m.modified());
            if let (Ok(text), Ok(used)) = (fs::read_to_string(&lock), used) {
                entries.push((used, entry.path(), text.parse::<u64>().unwrap_or(0)));
            }
        }
        entries.sort();
        let mut total: u64 = entries.iter().map(|(_, _, bytes)| bytes).sum();
        for (_, path, bytes) in entries {
            if total <= self.bytes_max {
                break;
            }
            if self.remove(&path)? {
                total -= bytes;
            }
        }
        Ok(())
    }

    /// Removes an entry that nobody uses. Returns whether it did.
    fn remove(&self, entry: &Path) -> io::Result<bool> {
        let Ok(lock) = File::open(entry.join("lock")) else {
            return Ok(false);
        };
        if lock.try_lock().is_err() {
            return Ok(false);
        }
        let gone = self.directory.join(format!(".new-{}", Uuid::new_v4().simple()));
        fs::rename(entry, &gone)?;
        fs::remove_dir_all(&gone)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(at: &Path) -> PathBuf {
        let path = at.join(Uuid::new_v4().simple().to_string());
        fs::create_dir(&path).unwrap();
        fs::write(path.join("six.py"), "x").unwrap();
        path
    }

    #[test]
    fn the_least_recently_used_goes_first_and_one_in_use_never() {
        let at = tempfile::tempdir().unwrap();
        let cache = DepsCache::open(at.path().join("cache"), 250).unwrap();
        let a = cache.put("a", &tree(at.path()), 100).unwrap().unwrap();
        drop(cache.put("b", &tree(at.path()), 100).unwrap().unwrap());
        drop(cache.put("c", &tree(at.path()), 100).unwrap().unwrap());
        assert!(a.path.join("six.py").is_file(), "a is in use");
        assert!(cache.get("b").unwrap().is_none());
        assert!(cache.get("c").unwrap().is_some());
        drop(a);
        drop(cache.get("c").unwrap());
        drop(cache.put("d", &tree(at.path()), 100).unwrap());
        assert!(cache.get("a").unwrap().is_none());
        assert!(cache.get("c").unwrap().is_some());
        assert_eq!(fs::read_dir(at.path().join("cache")).unwrap().count(), 2);
    }

    #[test]
    fn an_old_entry_is_replaced() {
        let at = tempfile::tempdir().unwrap();
        let cache = DepsCache::open(at.path().join("cache"), 250).unwrap();
        let stored = cache.put("a", &tree(at.path()), 1).unwrap().unwrap();
        let long_ago = SystemTime::now() - AGE_MAX - Duration::from_secs(60);
        File::open(&stored.path).unwrap().set_modified(long_ago).unwrap();
        drop(stored);
        assert!(cache.get("a").unwrap().is_none());
        assert!(cache.put("a", &tree(at.path()), 1).unwrap().is_some());
        assert!(cache.get("a").unwrap().is_some());
    }

    #[test]
    fn a_tree_that_cannot_be_stored_stays_where_it_was() {
        let at = tempfile::tempdir().unwrap();
        let cache = DepsCache::open(at.path().join("cache"), 250).unwrap();
        let first = cache.put("a", &tree(at.path()), 1).unwrap().unwrap();
        let second = tree(at.path());
        assert!(cache.put("a", &second, 1).unwrap().is_none());
        assert!(second.join("six.py").is_file());
        assert!(first.path.join("six.py").is_file());
    }
}

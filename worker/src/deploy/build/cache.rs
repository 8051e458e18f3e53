//! Cache of installed dependencies, keyed by what they were installed from. The next deploy of the same list takes no
//! time.
//!
//! ```text
//! deps-cache/KEY/tree/…   what was installed
//! deps-cache/KEY/lock     its size, the milliseconds that it took, and the host's boot; held (flock) while in use, and
//!                         its time is the last use
//! deps-cache/.new-…       being put or removed
//! ```
//!
//! Nothing is synced. So what an earlier boot of the host has put is not taken: after a power failure names may be
//! there, and contents not.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rekindle_confined::tree::remove_tree;
use uuid::Uuid;

use super::counts::BuildCounts;

/// Age after which an unpinned list is resolved again.
const AGE_MAX: Duration = Duration::from_secs(24 * 3_600);
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// The cache's directory. Several builds use it at once.
#[derive(Debug, Clone)]
pub(super) struct DepsCache {
    directory: PathBuf,
    bytes_max: u64,
    counts: BuildCounts,
    /// The host's boot.
    boot: String,
}

/// What the cache holds under a key.
struct Entry {
    path: PathBuf,
    bytes: u64,
    took: Duration,
    idle: Duration,
    /// Whether it is too old to be taken, or of an earlier boot.
    is_old: bool,
}

impl Entry {
    /// The time it took to install, for each byte and each second since its last use.
    fn worth(&self) -> f64 {
        let waited = self.idle.as_secs_f64() + 1.0;
        self.took.as_secs_f64() / (self.bytes.max(1) as f64 * waited)
    }
}

/// An installed tree. It is not removed as long as this lives.
#[derive(Debug)]
pub(super) struct CachedTree {
    pub(super) path: PathBuf,
    _in_use: File,
}

impl DepsCache {
    /// Opens the cache in `directory`, which only root may enter: installers run with fewer privileges.
    /// What is too old to be taken, or of an earlier boot, goes.
    pub(super) fn open(directory: PathBuf, bytes_max: u64, counts: BuildCounts) -> io::Result<Self> {
        let boot = fs::read_to_string(BOOT)?.trim().to_owned();
        Self::open_in(directory, bytes_max, counts, boot)
    }

    fn open_in(directory: PathBuf, bytes_max: u64, counts: BuildCounts, boot: String) -> io::Result<Self> {
        fs::create_dir_all(&directory)?;
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o700))?;
        let cache = Self {
            directory,
            bytes_max,
            counts,
            boot,
        };
        cache.evict()?;
        Ok(cache)
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

    /// Moves `tree` (of `bytes`; it `took` that long to install) into the cache, then removes the entries that are
    /// worth least until all fits. Returns `None` when somebody else has just stored, or is removing, an entry with
    /// that key. `tree` is then unchanged.
    pub(super) fn put(&self, key: &str, tree: &Path, bytes: u64, took: Duration) -> io::Result<Option<CachedTree>> {
        let entry = self.directory.join(key);
        self.remove(&entry)?;
        let new = self.directory.join(format!(".new-{}", Uuid::new_v4().simple()));
        fs::create_dir(&new)?;
        let mut lock = File::create_new(new.join("lock"))?;
        lock.lock_shared()?;
        write!(lock, "{bytes} {} {}", took.as_millis(), self.boot)?;
        fs::rename(tree, new.join("tree"))?;
        if fs::rename(&new, &entry).is_err() {
            fs::rename(new.join("tree"), tree)?;
            remove_tree(&new)?;
            return Ok(None);
        }
        self.evict()?;
        Ok(Some(CachedTree {
            path: entry.join("tree"),
            _in_use: lock,
        }))
    }

    fn evict(&self) -> io::Result<()> {
        let mut entries = entries(&self.directory, &self.boot)?;
        entries.sort_by(|a, b| b.is_old.cmp(&a.is_old).then(a.worth().total_cmp(&b.worth())));
        let mut total: u64 = entries.iter().map(|entry| entry.bytes).sum();
        for entry in entries {
            if (entry.is_old || total > self.bytes_max) && self.remove(&entry.path)? {
                total -= entry.bytes;
                self.counts.evicted(entry.bytes);
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
        remove_tree(&gone)?;
        Ok(true)
    }
}

/// Bytes that the cache in a directory holds; none if it cannot be read. Blocks.
pub(super) fn bytes_in(directory: &Path) -> u64 {
    entries(directory, "").map_or(0, |entries| entries.iter().map(|entry| entry.bytes).sum())
}

fn entries(directory: &Path, boot: &str) -> io::Result<Vec<Entry>> {
    let since = |path: &Path| {
        let modified = fs::metadata(path).and_then(|metadata| metadata.modified()).ok()?;
        Some(SystemTime::now().duration_since(modified).unwrap_or_default())
    };
    let entry = |path: PathBuf| {
        let lock = path.join("lock");
        let text = fs::read_to_string(&lock).ok()?;
        let mut words = text.split(' ');
        let mut number = || words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
        Some(Entry {
            bytes: number(),
            took: Duration::from_millis(number()),
            idle: since(&lock)?,
            is_old: since(&path.join("tree")).is_none_or(|age| age > AGE_MAX) || words.next() != Some(boot),
            path,
        })
    };
    Ok(fs::read_dir(directory)?
        .flatten()
        .filter_map(|found| entry(found.path()))
        .collect())
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

    fn cache(at: &Path) -> DepsCache {
        let counts = BuildCounts::new(&rekindle_telemetry::metrics::Registry::new("worker"));
        DepsCache::open(at.join("cache"), 250, counts).unwrap()
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_an_earlier_boot_has_put_is_not_taken() {
        let at = tempfile::tempdir().unwrap();
        let open = |boot: &str| {
            let counts = BuildCounts::new(&rekindle_telemetry::metrics::Registry::new("worker"));
            DepsCache::open_in(at.path().join("cache"), 250, counts, boot.to_owned()).unwrap()
        };
        drop(open("a").put("key", &tree(at.path()), 10, SECOND).unwrap());
        assert!(open("a").get("key").unwrap().is_some());
        assert!(open("b").get("key").unwrap().is_none());
        assert!(open("a").get("key").unwrap().is_none());
    }

    #[test]
    fn what_is_worth_least_goes_first_and_one_in_use_never() {
        let at = tempfile::tempdir().unwrap();
        let cache = cache(at.path());
        let put = |key, bytes, took| cache.put(key, &tree(at.path()), bytes, took).unwrap().unwrap();
        let a = put("a", 100, SECOND / 10);
        drop(put("b", 100, SECOND));
        drop(put("c", 100, 10 * SECOND));
        assert!(a.path.join("six.py").is_file(), "a is in use");
        assert!(cache.get("b").unwrap().is_none(), "it was quicker to install than c");
        assert!(cache.get("c").unwrap().is_some());
        drop(a);
        drop(put("d", 100, SECOND));
        assert!(cache.get("a").unwrap().is_none());
        // For long nobody has used c.
        let long_ago = SystemTime::now() - 3_600 * SECOND;
        let lock = at.path().join("cache/c/lock");
        File::options()
            .write(true)
            .open(lock)
            .unwrap()
            .set_modified(long_ago)
            .unwrap();
        drop(put("e", 100, SECOND));
        assert!(cache.get("c").unwrap().is_none());
        assert_eq!(bytes_in(&at.path().join("cache")), 200);
        assert_eq!(fs::read_dir(at.path().join("cache")).unwrap().count(), 2);
    }

    #[test]
    fn an_old_entry_is_replaced() {
        let at = tempfile::tempdir().unwrap();
        let cache = cache(at.path());
        let stored = cache.put("a", &tree(at.path()), 1, SECOND).unwrap().unwrap();
        let long_ago = SystemTime::now() - AGE_MAX - Duration::from_secs(60);
        File::open(&stored.path).unwrap().set_modified(long_ago).unwrap();
        drop(stored);
        assert!(cache.get("a").unwrap().is_none());
        drop(cache.put("a", &tree(at.path()), 1, SECOND).unwrap().unwrap());
        drop(cache.get("a").unwrap().unwrap());
        File::open(at.path().join("cache/a/tree"))
            .unwrap()
            .set_modified(long_ago)
            .unwrap();
        let again = self::cache(at.path());
        assert_eq!(
            fs::read_dir(&again.directory).unwrap().count(),
            0,
            "nobody takes it any more"
        );
    }

    #[test]
    fn a_tree_that_cannot_be_stored_stays_where_it_was() {
        let at = tempfile::tempdir().unwrap();
        let cache = cache(at.path());
        let first = cache.put("a", &tree(at.path()), 1, SECOND).unwrap().unwrap();
        let second = tree(at.path());
        assert!(cache.put("a", &second, 1, SECOND).unwrap().is_none());
        assert!(second.join("six.py").is_file());
        assert!(first.path.join("six.py").is_file());
    }
}

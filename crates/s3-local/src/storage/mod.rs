//! The storage: a directory of buckets that one process owns. It knows no HTTP; its operations block.

mod body;
mod bucket;
mod checksums;
mod durable;
mod format;
mod listing;
mod names;
mod object;
mod uploads;

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;

pub(crate) use body::{BodyWriter, SealError, SealedObject};
pub(crate) use bucket::{Bucket, ChangeError, Condition};
pub(crate) use checksums::{ChecksumError, ChecksumVerifier, Checksums};
pub(crate) use durable::{IoError, TempDir};
pub(crate) use format::{Headers, Meta};
pub(crate) use listing::{Entry, Query};
pub(crate) use names::escape;
pub(crate) use object::{BATCH_LEN, ObjectFile, RangeReader, ReadError};
pub(crate) use uploads::{UploadError, UploadId};

const FORMAT: &str = "rekindle-s3-local 1\n";

/// Why the storage could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another process owns the directory.
    #[error("{} is in use by another server; stop it, or choose another directory", .0.display())]
    InUse(PathBuf),
    /// The directory was written by something else, or by another version.
    #[error("{} is not of this version's layout ({found:?}); choose an empty directory", path.display())]
    Layout {
        /// The root.
        path: PathBuf,
        /// Content of its FORMAT file.
        found: String,
    },
    /// The configuration asks for a bucket that S3 does not allow.
    #[error("{0:?} cannot be a bucket: 3 to 63 lower-case letters, digits, dots and hyphens")]
    BucketName(String),
    /// A disk operation failed.
    #[error(transparent)]
    Io(#[from] IoError),
}

/// Why a bucket could not be created.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CreateBucketError {
    #[error("the bucket exists")]
    Exists,
    #[error(transparent)]
    Io(#[from] IoError),
}

#[derive(Debug)]
pub(crate) struct Storage {
    buckets_dir: PathBuf,
    pub(crate) temps: Arc<TempDir>,
    buckets: RwLock<BTreeMap<String, Arc<Bucket>>>,
    /// Held for its lock, which is released with the process, however it ends.
    _lock: File,
}

impl Storage {
    /// Opens or creates `root`: takes its lock, removes leftovers of a crash, creates `buckets`.
    pub(crate) fn open(root: &Path, buckets: &[String]) -> Result<Storage, StartError> {
        std::fs::create_dir_all(root).map_err(IoError::at("make", root))?;
        let lock_path = root.join("LOCK");
        let lock = File::create(&lock_path).map_err(IoError::at("open", &lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StartError::InUse(root.to_owned())),
            Err(TryLockError::Error(error)) => {
                return Err(IoError::at("lock", &lock_path)(error).into());
            }
        }
        let (temp_dir, buckets_dir) = (root.join("tmp"), root.join("buckets"));
        check_layout(root, &temp_dir)?;
        for dir in [&temp_dir, &buckets_dir] {
            std::fs::create_dir_all(dir).map_err(IoError::at("make", dir))?;
        }
        durable::sync_dir(root)?;

        let mut storage = Storage {
            buckets_dir,
            temps: Arc::new(TempDir::new(temp_dir)),
            buckets: RwLock::default(),
            _lock: lock,
        };
        storage.read_buckets()?;
        for name in buckets {
            if !s3s::path::check_bucket_name(name) {
                return Err(StartError::BucketName(name.clone()));
            }
            match storage.create_bucket(name) {
                Ok(()) | Err(CreateBucketError::Exists) => {}
                Err(CreateBucketError::Io(error)) => return Err(error.into()),
            }
        }
        Ok(storage)
    }

    fn read_buckets(&mut self) -> Result<(), IoError> {
        let at = |error| IoError::at("list", &self.buckets_dir)(error);
        for entry in std::fs::read_dir(&self.buckets_dir).map_err(at)? {
            let entry = entry.map_err(at)?;
            if let Some(name) = entry.file_name().to_str() {
                let bucket = Bucket::open(&entry.path())?;
                bucket.expire_uploads();
                self.buckets.get_mut().insert(name.to_owned(), Arc::new(bucket));
            }
        }
        Ok(())
    }

    pub(crate) fn bucket(&self, name: &str) -> Option<Arc<Bucket>> {
        self.buckets.read().get(name).cloned()
    }

    pub(crate) fn buckets(&self) -> Vec<(String, Arc<Bucket>)> {
        self.buckets
            .read()
            .iter()
            .map(|(name, bucket)| (name.clone(), bucket.clone()))
            .collect()
    }

    /// Creates a bucket, completely or not at all. `name` has been checked to be a bucket name, and so is one path
    /// component.
    pub(crate) fn create_bucket(&self, name: &str) -> Result<(), CreateBucketError> {
        let mut buckets = self.buckets.write();
        if buckets.contains_key(name) {
            return Err(CreateBucketError::Exists);
        }
        let path = self.buckets_dir.join(name);
        let building = self.temps.fresh_path();
        for dir in ["objects", "uploads"] {
            std::fs::create_dir_all(building.join(dir)).map_err(IoError::at("make", &building))?;
        }
        durable::sync_dir(&building)?;
        std::fs::rename(&building, &path).map_err(IoError::at("rename to", &path))?;
        durable::sync_dir(&self.buckets_dir)?;
        buckets.insert(name.to_owned(), Arc::new(Bucket::open(&path)?));
        Ok(())
    }
}

/// Refuses a foreign root, marks a new one, and empties `temp_dir`, whatever a crash left there.
fn check_layout(root: &Path, temp_dir: &Path) -> Result<(), StartError> {
    let path = root.join("FORMAT");
    match std::fs::read_to_string(&path) {
        Ok(found) if found == FORMAT => {}
        Ok(found) => {
            return Err(StartError::Layout {
                path: root.to_owned(),
                found,
            });
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // Only in a directory without anyone else's files: what is in tmp is removed below.
            for entry in std::fs::read_dir(root).map_err(IoError::at("list", root))? {
                let name = entry.map_err(IoError::at("list", root))?.file_name();
                if name != "LOCK" && name != "FORMAT.new" && name != "lost+found" {
                    return Err(StartError::Layout {
                        path: root.to_owned(),
                        found: name.to_string_lossy().into_owned(),
                    });
                }
            }
            let new = root.join("FORMAT.new");
            std::fs::write(&new, FORMAT).map_err(IoError::at("write", &new))?;
            File::open(&new)
                .and_then(|file| file.sync_all())
                .map_err(IoError::at("make durable", &new))?;
            std::fs::rename(&new, &path).map_err(IoError::at("rename to", &path))?;
        }
        Err(error) => return Err(IoError::at("read", &path)(error).into()),
    }
    match std::fs::remove_dir_all(temp_dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(IoError::at("empty", temp_dir)(error).into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;

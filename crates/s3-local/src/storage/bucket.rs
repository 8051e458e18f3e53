//! One bucket: its objects by key, the order of changes to each key, the sorted set of keys for listings.
//!
//! The directory is the truth; the key set mirrors it, since one process owns it. Everything here blocks.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use parking_lot::RwLock;

use super::body::SealedObject;
use super::durable::{DirSync, IoError};
use super::listing::{Page, Query, page};
use super::names::{self, ParsedFileName};
use super::object::{ObjectFile, ReadError};

/// Keys that hash to the same stripe wait for each other's commit. There are enough stripes that two keys rarely
/// collide.
const STRIPES: usize = 1024;

/// What must hold of the present object for a change to happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Condition {
    None,
    /// `If-None-Match: *`
    Absent,
    /// `If-Match: *`
    Present,
    /// `If-Match: "etag"`
    Etag(String),
}

/// Why a change did not happen.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChangeError {
    #[error("the condition of the request does not hold")]
    ConditionFailed,
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Io(#[from] IoError),
}

#[derive(Debug)]
pub(crate) struct Bucket {
    pub(crate) created: SystemTime,
    objects: PathBuf,
    pub(super) uploads: PathBuf,
    sync: DirSync,
    pub(super) uploads_sync: DirSync,
    stripes: Box<[RwLock<()>]>,
    keys: RwLock<BTreeSet<Vec<u8>>>,
}

impl Bucket {
    /// Opens the bucket in `path` and reads the names of all its objects.
    pub(super) fn open(path: &Path) -> Result<Bucket, IoError> {
        let (objects, uploads) = (path.join("objects"), path.join("uploads"));
        let metadata = std::fs::metadata(path).map_err(IoError::at("look at", path))?;
        let created = metadata
            .created()
            .or_else(|_| metadata.modified())
            .map_err(IoError::at("look at", path))?;
        let mut keys = BTreeSet::new();
        for entry in std::fs::read_dir(&objects).map_err(IoError::at("list", &objects))? {
            let name = entry.map_err(IoError::at("list", &objects))?.file_name();
            match name.to_str().map_or(ParsedFileName::Foreign, names::key_of) {
                ParsedFileName::Key(key) => {
                    keys.insert(key.into_bytes());
                }
                ParsedFileName::Hashed => match ObjectFile::open(&objects.join(&name)) {
                    Ok(object) => {
                        keys.insert(object.meta.key.into_bytes());
                    }
                    // Its key is lost with its metadata, so it cannot be requested.
                    Err(error) => {
                        tracing::error!(%error, "an object that cannot be read is left out of listings")
                    }
                },
                ParsedFileName::Foreign => {
                    tracing::warn!(name = %name.to_string_lossy(), "a file that is no object lies among objects")
                }
            }
        }
        Ok(Bucket {
            created,
            sync: DirSync::open(&objects)?,
            uploads_sync: DirSync::open(&uploads)?,
            objects,
            uploads,
            stripes: (0..STRIPES).map(|_| RwLock::new(())).collect(),
            keys: RwLock::new(keys),
        })
    }

    fn stripe(&self, key: &str) -> &RwLock<()> {
        // The remainder is below STRIPES.
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(key);
        &self.stripes[(hash % STRIPES as u64) as usize]
    }

    fn path(&self, key: &str) -> PathBuf {
        self.objects.join(names::file_name(key))
    }

    /// Opens the object as it is after every change that was answered, and before any that is not yet durable.
    pub(crate) fn get(&self, key: &str) -> Result<ObjectFile, ReadError> {
        let _settled = self.stripe(key).read();
        self.open_checked(key)
    }

    fn open_checked(&self, key: &str) -> Result<ObjectFile, ReadError> {
        let object = ObjectFile::open(&self.path(key))?;
        if object.meta.key != key {
            return Err(object.damaged("belongs to another key"));
        }
        Ok(object)
    }

    /// Whether the object exists now; only a hint, since that may change at once.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.keys.read().contains(key.as_bytes())
    }

    /// Makes `sealed` the object of its key if `condition` holds; durable when this returns.
    pub(crate) fn put(&self, sealed: SealedObject, condition: &Condition) -> Result<(), ChangeError> {
        let key = sealed.meta.key;
        let path = self.path(&key);
        let _turn = self.stripe(&key).write();
        if *condition == Condition::Absent {
            if !sealed.temp.place_new(&path)? {
                return Err(ChangeError::ConditionFailed);
            }
        } else {
            self.check(&key, condition)?;
            sealed.temp.replace(&path)?;
        }
        self.keys.write().insert(key.into_bytes());
        Ok(self.sync.sync()?)
    }

    fn check(&self, key: &str, condition: &Condition) -> Result<(), ChangeError> {
        let holds = match condition {
            Condition::None => true,
            Condition::Absent => !self.has(key),
            // An absent object is `NoSuchKey` here, as in S3.
            Condition::Present => self.open_checked(key).map(|_| true)?,
            Condition::Etag(etag) => self.open_checked(key)?.meta.etag == *etag,
        };
        if holds {
            Ok(())
        } else {
            Err(ChangeError::ConditionFailed)
        }
    }

    /// Removes the object if there is one and `condition` holds; durable when this returns.
    pub(crate) fn delete(&self, key: &str, condition: &Condition) -> Result<(), ChangeError> {
        let _turn = self.stripe(key).write();
        self.check(key, condition)?;
        self.unlink(key)?;
        Ok(self.sync.sync()?)
    }

    /// Removes many objects with one fsync. Returns the error for each key that failed. Unlike `delete` it lets readers
    /// see a removal a moment early: a power cut could then bring back an object whose removal was never answered.
    pub(crate) fn delete_all(&self, keys: &[String]) -> Result<Vec<Option<IoError>>, IoError> {
        let failures = keys.iter().map(|key| {
            let _turn = self.stripe(key).write();
            self.unlink(key).err()
        });
        let failures = failures.collect();
        self.sync.sync()?;
        Ok(failures)
    }

    fn unlink(&self, key: &str) -> Result<(), IoError> {
        let path = self.path(key);
        match std::fs::remove_file(&path).map_err(IoError::at("remove", &path)) {
            Err(error) if !error.is_absence() => return Err(error),
            _ => self.keys.write().remove(key.as_bytes()),
        };
        Ok(())
    }

    /// One page of keys.
    pub(crate) fn list(&self, query: &Query) -> Page {
        page(&self.keys.read(), query)
    }
}

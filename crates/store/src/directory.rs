//! The object store in a local directory, which several processes of one host may share.
//!
//! ```text
//! ROOT/
//!   FORMAT           "rekindle-objects 1": another layout is refused
//!   tmp/…            files being written; what a killed process left there is removed at a later start
//!   objects/NAME     one file per object, its bytes and nothing else
//! ```
//!
//! NAME is the key with special bytes escaped ([`crate::key_of`]). All objects are in one directory, so that an fsync
//! of it makes everything durable that came before: whoever relies on another writer's object makes it durable too.
//!
//! ```text
//! write ──► tmp/… ──► fdatasync ──► rename to objects/NAME ──► fsync of objects/ ──► answered
//!                                    └─ create-if-absent: renameat2(RENAME_NOREPLACE), which the kernel decides
//! ```
//!
//! Bytes that rot on the disk are found by whoever reads them: all that is stored has a BLAKE3 digest elsewhere.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use tempfile::NamedTempFile;
use tokio::sync::mpsc;

use crate::names::{beginning, file_name, key_of};
use crate::{Backend, ObjectInfo, Outcome, Requests, Store, StoreError, StoreObserver};

const FORMAT: &str = "rekindle-objects 1\n";
/// After this time a file in `tmp` belongs to nobody.
const ABANDONED: Duration = Duration::from_secs(24 * 3600);
/// Limit of an operation, and the slowest acceptable transfer: a disk that hangs must not hold its callers.
const LIMIT: Duration = Duration::from_secs(30);
const SLOWEST_BYTES_PER_S: u64 = 4 << 20;
/// Bytes of a piece sent to a reader.
const PIECE: usize = 64 << 10;

/// Why a directory cannot be used as a store.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It was written by something else, or by another version.
    #[error("{} is not a directory of objects of this version ({found:?}): choose an empty one", path.display())]
    Layout {
        /// The directory.
        path: PathBuf,
        /// Content of its FORMAT file, or another file in it.
        found: String,
    },
    /// It cannot be read or written.
    #[error("could not {operation} {}", path.display())]
    Io {
        /// The attempted operation.
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        cause: io::Error,
    },
}

impl OpenError {
    fn at<'a>(operation: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> Self + 'a {
        move |cause| Self::Io {
            operation,
            path: path.to_owned(),
            cause,
        }
    }
}

/// A directory of objects.
#[derive(Debug, Clone)]
pub struct Directory {
    paths: Arc<Paths>,
    requests: Requests,
}

#[derive(Debug)]
struct Paths {
    root: PathBuf,
    objects: PathBuf,
    temporary: PathBuf,
}

impl Directory {
    /// Opens or creates `root`. Blocks.
    ///
    /// # Errors
    /// If it holds anything else, or cannot be written.
    pub fn open(root: &Path) -> Result<Store, OpenError> {
        let paths = Paths {
            root: root.to_owned(),
            objects: root.join("objects"),
            temporary: root.join("tmp"),
        };
        fs::create_dir_all(root).map_err(OpenError::at("make", root))?;
        paths.claim()?;
        paths.remove_abandoned();
        Ok(Store::new(Self {
            requests: Requests::in_directory(root),
            paths: Arc::new(paths),
        }))
    }

    /// Runs `work` on a blocking thread as one request that may move `bytes`.
    async fn request<T: Send + 'static>(
        &self,
        operation: &'static str,
        key: &str,
        bytes: u64,
        work: impl FnOnce(&Paths) -> io::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let limit = LIMIT + Duration::from_millis(bytes.saturating_mul(1000) / SLOWEST_BYTES_PER_S);
        let paths = Arc::clone(&self.paths);
        let call = async {
            let done = tokio::task::spawn_blocking(move || work(&paths)).await;
            done.map_err(io::Error::other)
                .flatten()
                .map_err(|e| self.error(operation, key, e))
        };
        let deadline = Instant::now() + limit;
        self.requests
            .bounded_until(operation, key, deadline, call, StoreError::outcome)
            .await?
    }

    fn error(&self, operation: &'static str, key: &str, cause: io::Error) -> StoreError {
        match (operation, cause.kind()) {
            ("get" | "look up", io::ErrorKind::NotFound) => self.requests.not_found(key),
            _ => self.requests.failed(operation, key, cause),
        }
    }

    fn name(&self, key: &str) -> Result<String, StoreError> {
        file_name(key).ok_or_else(|| {
            let cause = io::Error::new(io::ErrorKind::InvalidFilename, "the key is too long, or empty");
            self.requests.failed("name", key, cause)
        })
    }

    async fn write(
        &self,
        key: &str,
        bytes: u64,
        replace: bool,
        fill: impl FnOnce(&mut File) -> io::Result<()> + Send + 'static,
    ) -> Result<Outcome, StoreError> {
        let name = self.name(key)?;
        let write = move |paths: &Paths| paths.write(&name, replace, fill);
        let outcome = self.request("put", key, bytes, write).await?;
        self.requests.sent(bytes);
        Ok(outcome)
    }

    async fn write_file(&self, key: &str, path: &Path, replace: bool) -> Result<(u64, Outcome), StoreError> {
        let from = File::open(path).map_err(StoreError::file("read", path))?;
        let len = from.metadata().map_err(StoreError::file("look at", path))?.len();
        // Both are files, so the kernel copies, or shares the blocks where the file system can.
        let fill = move |to: &mut File| {
            let copied = io::copy(&mut (&from).take(len), to)?;
            if copied == len {
                Ok(())
            } else {
                Err(io::ErrorKind::UnexpectedEof.into())
            }
        };
        Ok((len, self.write(key, len, replace, fill).await?))
    }
}

impl Paths {
    /// Marks a new directory as ours, and refuses anything else.
    fn claim(&self) -> Result<(), OpenError> {
        let layout = |found: String| OpenError::Layout {
            path: self.root.clone(),
            found,
        };
        let format = self.root.join("FORMAT");
        match fs::read_to_string(&format) {
            Ok(found) if found == FORMAT => {}
            Ok(found) => return Err(layout(found)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                for entry in fs::read_dir(&self.root).map_err(OpenError::at("list", &self.root))? {
                    let name = entry.map_err(OpenError::at("list", &self.root))?.file_name();
                    if !["objects", "tmp", "lost+found"].iter().any(|known| name == *known) {
                        return Err(layout(name.to_string_lossy().into_owned()));
                    }
                }
            }
            Err(e) => return Err(OpenError::at("read", &format)(e)),
        }
        for directory in [&self.objects, &self.temporary] {
            fs::create_dir_all(directory).map_err(OpenError::at("make", directory))?;
        }
        if !format.exists() {
            let marked = NamedTempFile::new_in(&self.temporary).and_then(|mut new| {
                new.write_all(FORMAT.as_bytes())?;
                new.as_file().sync_all()?;
                new.persist(&format)?;
                sync(&self.root)
            });
            marked.map_err(OpenError::at("write", &format))?;
        }
        Ok(())
    }

    /// Removes what killed processes left. What cannot be removed is left to the next start.
    fn remove_abandoned(&self) {
        let before = SystemTime::now() - ABANDONED;
        for entry in fs::read_dir(&self.temporary).into_iter().flatten().flatten() {
            let modified = entry.metadata().and_then(|found| found.modified());
            if modified.is_ok_and(|modified| modified < before) {
                drop(fs::remove_file(entry.path()));
            }
        }
    }

    fn object(&self, name: &str) -> PathBuf {
        self.objects.join(name)
    }

    fn write(&self, name: &str, replace: bool, fill: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<Outcome> {
        let path = self.object(name);
        if !replace && path.exists() {
            // Only saves the work. Whoever answered for it has made it durable, or is about to: then so does this.
            sync(&self.objects)?;
            return Ok(Outcome::AlreadyPresent);
        }
        let mut new = NamedTempFile::new_in(&self.temporary)?;
        fill(new.as_file_mut())?;
        new.as_file().sync_data()?;
        let outcome = if replace {
            new.persist(&path)?;
            Outcome::Created
        } else {
            match new.persist_noclobber(&path) {
                Ok(_) => Outcome::Created,
                Err(e) if e.error.kind() == io::ErrorKind::AlreadyExists => Outcome::AlreadyPresent,
                Err(e) => return Err(e.error),
            }
        };
        sync(&self.objects)?;
        Ok(outcome)
    }

    /// Names and keys of all objects whose keys start with `prefix`.
    fn keys(&self, prefix: &str) -> io::Result<Vec<(PathBuf, String)>> {
        let starts = beginning(prefix);
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.objects)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|name| name.starts_with(&starts)) else {
                continue;
            };
            match key_of(name) {
                Some(key) => found.push((entry.path(), key)),
                None => tracing::warn!(name, "a file that is no object lies among objects"),
            }
        }
        Ok(found)
    }
}

/// Makes a directory's entries durable.
fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

fn described(key: String, found: &fs::Metadata) -> ObjectInfo {
    let modified = found.modified().ok();
    let since = modified.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
    ObjectInfo {
        key,
        len: found.len(),
        modified_unix_ms: since.and_then(|since| i64::try_from(since.as_millis()).ok()),
    }
}

#[async_trait]
impl Backend for Directory {
    fn place(&self) -> &str {
        self.requests.place()
    }

    fn observed(&self, observer: StoreObserver) -> Store {
        Store::new(Self {
            paths: Arc::clone(&self.paths),
            requests: self.requests.observed(observer),
        })
    }

    async fn ensure_place(&self) -> Result<(), StoreError> {
        self.check().await
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.request("reach", "", 0, |paths| fs::metadata(&paths.objects).map(drop))
            .await
    }

    async fn put(&self, key: &str, bytes: Bytes) -> Result<(), StoreError> {
        let len = bytes.len() as u64;
        let written = self.write(key, len, true, move |to| to.write_all(&bytes));
        written.await.map(drop)
    }

    async fn put_if_absent(&self, key: &str, bytes: Bytes) -> Result<Outcome, StoreError> {
        let len = bytes.len() as u64;
        self.write(key, len, false, move |to| to.write_all(&bytes)).await
    }

    async fn put_file(&self, key: &str, path: &Path) -> Result<u64, StoreError> {
        self.write_file(key, path, true).await.map(|(len, _)| len)
    }

    async fn put_file_if_absent(&self, key: &str, path: &Path) -> Result<Outcome, StoreError> {
        self.write_file(key, path, false).await.map(|(_, outcome)| outcome)
    }

    async fn get(&self, key: &str) -> Result<Bytes, StoreError> {
        let name = self.name(key)?;
        let bytes = self
            .request("get", key, u64::from(u32::MAX), move |paths| {
                fs::read(paths.object(&name))
            })
            .await?;
        self.requests.received(bytes.len() as u64);
        Ok(bytes.into())
    }

    async fn get_at_most(&self, key: &str, most: u64) -> Result<Bytes, StoreError> {
        let name = self.name(key)?;
        let read = move |paths: &Paths| {
            let file = File::open(paths.object(&name))?;
            let len = file.metadata()?.len();
            let mut bytes = Vec::new();
            if len <= most {
                // A file is replaced, never written again.
                file.take(most).read_to_end(&mut bytes)?;
            }
            Ok((bytes, len))
        };
        let (bytes, len) = self.request("get", key, most, read).await?;
        if len > most {
            return Err(self.requests.too_large(key, len, most));
        }
        self.requests.received(bytes.len() as u64);
        Ok(bytes.into())
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let (name, len) = (self.name(key)?, range.end - range.start);
        let read = move |paths: &Paths| {
            let mut bytes = vec![0; usize::try_from(len).map_err(io::Error::other)?];
            File::open(paths.object(&name))?.read_exact_at(&mut bytes, range.start)?;
            Ok(bytes)
        };
        let bytes = self.request("get", key, len, read).await?;
        self.requests.received(len);
        Ok(bytes.into())
    }

    async fn head(&self, key: &str) -> Result<ObjectInfo, StoreError> {
        let name = self.name(key)?;
        let found = self.request("look up", key, 0, move |paths| fs::metadata(paths.object(&name)));
        Ok(described(key.to_owned(), &found.await?))
    }

    async fn get_to_file(&self, key: &str, path: &Path) -> Result<u64, StoreError> {
        let (name, to) = (self.name(key)?, path.to_owned());
        let opened = self.request("get", key, 0, move |paths| File::open(paths.object(&name)));
        let mut from = opened.await?;
        let mut new = File::create_new(path).map_err(StoreError::file("make", path))?;
        let len = from.metadata().map_err(|e| self.error("get", key, e))?.len();
        let copied = self.request("read", key, len, move |_| io::copy(&mut from, &mut new));
        match copied.await {
            Ok(copied) => {
                self.requests.received(copied);
                Ok(copied)
            }
            Err(e) => {
                drop(tokio::fs::remove_file(to).await);
                Err(e)
            }
        }
    }

    async fn get_pieces(&self, key: &str, pieces: mpsc::Sender<Bytes>) -> Result<(), StoreError> {
        let name = self.name(key)?;
        let opened = self.request("get", key, 0, move |paths| {
            let file = File::open(paths.object(&name))?;
            let len = file.metadata()?.len();
            Ok((file, len))
        });
        let (mut file, len) = opened.await?;
        let read = self.request("read", key, len, move |_| {
            loop {
                let mut piece = Vec::with_capacity(PIECE);
                (&mut file).take(PIECE as u64).read_to_end(&mut piece)?;
                let is_last = piece.is_empty();
                if pieces.blocking_send(piece.into()).is_err() || is_last {
                    return Ok(());
                }
            }
        });
        read.await?;
        self.requests.received(len);
        Ok(())
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        let asked = prefix.to_owned();
        let list = move |paths: &Paths| {
            let mut found = Vec::new();
            for (path, key) in paths.keys(&asked)? {
                match fs::metadata(path) {
                    Ok(metadata) => found.push(described(key, &metadata)),
                    // Deleted meanwhile.
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                    Err(e) => return Err(e),
                }
            }
            found.sort_unstable_by(|a, b| a.key.cmp(&b.key));
            Ok(found)
        };
        // Each object is looked at, and there may be millions.
        self.request("list", prefix, u64::from(u32::MAX), list).await
    }

    async fn list_folders(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let asked = prefix.to_owned();
        let list = move |paths: &Paths| {
            let keys = paths.keys(&asked)?;
            let folders = keys.iter().filter_map(|(_, key)| key[asked.len()..].split_once('/'));
            let folders: std::collections::BTreeSet<_> = folders.map(|(folder, _)| folder.to_owned()).collect();
            Ok(folders.into_iter().collect())
        };
        self.request("list", prefix, 0, list).await
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        let name = self.name(key)?;
        let delete = move |paths: &Paths| match fs::remove_file(paths.object(&name)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => sync(&paths.objects),
        };
        self.request("delete", key, 0, delete).await
    }

    async fn delete_once(&self, key: &str) -> Result<(), StoreError> {
        self.delete(key).await
    }
}

//! Multipart uploads: parts are object files of their own in the upload's directory until completion joins them.
//!
//! ```text
//!   create ──► parts come, in any order, again if need be ──► complete: join in tmp, commit as an object ──► removed
//!                                                        └──► abort, or a start after 7 idle days ──────────► removed
//! ```

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use super::body::{BodyWriter, SealError, SealedObject};
use super::bucket::Bucket;
use super::durable::{IoError, TempDir, sync_dir};
use super::format::Meta;
use super::object::{ObjectFile, ReadError};

/// Uploads without a new part for this long are given up: their client is gone. S3 itself keeps them forever.
const IDLE_LIMIT: Duration = Duration::from_secs(7 * 24 * 3600);
/// S3's rule, enforced so that what works here works there.
const SMALLEST_PART: u64 = 5 * 1024 * 1024;
const UPLOAD: &str = "upload";

/// Why an upload could not continue.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UploadError {
    #[error("no such upload: it was completed, aborted or never begun")]
    NoSuchUpload,
    #[error("part {0} was not uploaded, or has another ETag than the request says")]
    Part(u16),
    #[error("part {0} is smaller than 5 MiB, which only the last may be")]
    TooSmall(u16),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Seal(#[from] SealError),
    #[error(transparent)]
    Io(#[from] IoError),
}

/// The name of an upload: 32 hexadecimal digits, so it is one path component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UploadId(String);

impl UploadId {
    fn new() -> UploadId {
        UploadId(uuid::Uuid::new_v4().simple().to_string())
    }

    /// Parses an id; `None` if it is not one of ours.
    pub(crate) fn parse(text: &str) -> Option<UploadId> {
        let ours = text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        ours.then(|| UploadId(text.to_owned()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// One part, as ListParts shows it.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) number: u16,
    pub(crate) len: u64,
    pub(crate) meta: Meta,
}

impl Bucket {
    fn upload_dir(&self, id: &UploadId) -> PathBuf {
        self.uploads.join(&id.0)
    }

    /// Begins an upload; `sealed` is its metadata with an empty body.
    pub(crate) fn create_upload(&self, sealed: SealedObject) -> Result<UploadId, IoError> {
        let id = UploadId::new();
        let dir = self.upload_dir(&id);
        std::fs::create_dir(&dir).map_err(IoError::at("make", &dir))?;
        sealed.temp.replace(&dir.join(UPLOAD))?;
        sync_dir(&dir)?;
        self.uploads_sync.sync()?;
        Ok(id)
    }

    /// The metadata that the object of upload `id` to `key` will have.
    pub(crate) fn upload(&self, id: &UploadId, key: &str) -> Result<Meta, UploadError> {
        match ObjectFile::open(&self.upload_dir(id).join(UPLOAD)) {
            Ok(upload) if upload.meta.key == key => Ok(upload.meta),
            Ok(_) | Err(ReadError::Absent) => Err(UploadError::NoSuchUpload),
            Err(error) => Err(error.into()),
        }
    }

    /// Adds or replaces a part; durable when this returns.
    pub(crate) fn put_part(&self, id: &UploadId, number: u16, sealed: SealedObject) -> Result<(), UploadError> {
        let dir = self.upload_dir(id);
        let placed = sealed
            .temp
            .replace(&dir.join(part_name(number)))
            .and_then(|()| sync_dir(&dir));
        placed.map_err(|error| {
            if error.is_absence() {
                UploadError::NoSuchUpload
            } else {
                error.into()
            }
        })
    }

    /// At most `limit` parts after number `after`, and whether there are more.
    pub(crate) fn parts(&self, id: &UploadId, after: u16, limit: usize) -> Result<(Vec<Part>, bool), UploadError> {
        let dir = self.upload_dir(id);
        let mut numbers = Vec::new();
        for entry in std::fs::read_dir(&dir).map_err(IoError::at("list", &dir))? {
            let name = entry.map_err(IoError::at("list", &dir))?.file_name();
            if let Some(number) = name
                .to_str()
                .and_then(|name| name.parse::<u16>().ok())
                .filter(|number| *number > after)
            {
                numbers.push(number);
            }
        }
        numbers.sort_unstable();
        let more = numbers.len() > limit;
        numbers.truncate(limit);
        let mut parts = Vec::with_capacity(numbers.len());
        for number in numbers {
            let object = ObjectFile::open(&dir.join(part_name(number)))?;
            parts.push(Part {
                number,
                len: object.body_len(),
                meta: object.meta,
            });
        }
        Ok((parts, more))
    }

    /// Joins the parts that a completion names, with their ETags, into a durable file with the upload's metadata. Every
    /// part is checked before any is copied. One is open at a time, since there may be 10,000.
    pub(crate) fn join(
        &self,
        id: &UploadId,
        chosen: &[(u16, String)],
        mut meta: Meta,
        mut writer: BodyWriter,
    ) -> Result<SealedObject, UploadError> {
        for (at, (number, etag)) in chosen.iter().enumerate() {
            let len = self.part(id, *number, etag)?.body_len();
            if at + 1 < chosen.len() && len < SMALLEST_PART {
                return Err(UploadError::TooSmall(*number));
            }
            meta.part_lens.push(len);
        }
        for (number, etag) in chosen {
            let part = self.part(id, *number, etag)?;
            let whole = 0..part.body_len();
            let mut reader = part.read(whole);
            while let Some(bytes) = reader.next_batch()? {
                writer.write(&bytes)?;
            }
        }
        let joined = meta.part_lens.iter().sum();
        Ok(writer.seal(&[], Some(joined), None, meta)?)
    }

    fn part(&self, id: &UploadId, number: u16, etag: &str) -> Result<ObjectFile, UploadError> {
        match ObjectFile::open(&self.upload_dir(id).join(part_name(number))) {
            Ok(object) if object.meta.etag == etag => Ok(object),
            Ok(_) | Err(ReadError::Absent) => Err(UploadError::Part(number)),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn remove_upload(&self, id: &UploadId, temps: &TempDir) -> Result<(), UploadError> {
        let (dir, doomed) = (self.upload_dir(id), temps.fresh_path());
        // One rename, so that no reader sees a half-removed upload. What a crash leaves in tmp is removed at the next
        // start.
        std::fs::rename(&dir, &doomed)
            .map_err(IoError::at("remove", &dir))
            .map_err(|error| {
                if error.is_absence() {
                    UploadError::NoSuchUpload
                } else {
                    error.into()
                }
            })?;
        self.uploads_sync.sync()?;
        std::fs::remove_dir_all(&doomed).map_err(IoError::at("remove", &doomed))?;
        Ok(())
    }

    /// Called at start: removes uploads that were untouched for long.
    pub(super) fn expire_uploads(&self) {
        let Ok(entries) = std::fs::read_dir(&self.uploads) else {
            return;
        };
        for path in entries.flatten().map(|entry| entry.path()) {
            let modified = std::fs::metadata(&path).and_then(|metadata| metadata.modified());
            let idle = modified.ok().and_then(|at| SystemTime::now().duration_since(at).ok());
            if idle.is_some_and(|idle| idle > IDLE_LIMIT) {
                match std::fs::remove_dir_all(&path) {
                    Ok(()) => {
                        tracing::info!(path = %path.display(), "removed an upload that was given up")
                    }
                    Err(error) => {
                        tracing::warn!(path = %path.display(), %error, "cannot remove an upload that was given up")
                    }
                }
            }
        }
    }
}

/// Part numbers are 1 to 10000.
fn part_name(number: u16) -> String {
    format!("{number:05}")
}

//! Uploads of folders: received into a temporary file, hashed on the way, and checked before anything is kept.

pub(crate) mod places;

use std::borrow::Cow;
use std::collections::HashSet;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use axum::body::Body;
use flate2::read::MultiGzDecoder;
use futures::StreamExt as _;
use rekindle_confined::upload::{Extension, UnpackError, inside};
use rekindle_wire::api::{SourceFile, SourceKind};
use rekindle_wire::function_config::{self, FunctionConfig};
use rekindle_wire::{ApiError, ErrorCode};
use tempfile::NamedTempFile;
use tokio::io::AsyncWriteExt as _;

/// Largest archive, compressed.
pub(crate) const UPLOAD_MAX: u64 = 256 << 20;
/// Largest folder, unpacked.
const UNPACKED_MAX: u64 = 4 << 30;
const ENTRIES_MAX: usize = 200_000;
const CONFIG_MAX: u64 = 1 << 20;
/// Most bytes of all paths.
const NAMES_MAX: usize = 32 << 20;

/// Why an upload was refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UploadError {
    #[error(
        "the upload is larger than {} MiB: leave out what the function does not need (see .fnignore)",
        UPLOAD_MAX >> 20
    )]
    TooLarge,
    #[error("the upload ended early: try again")]
    Interrupted(#[source] axum::Error),
    #[error("the upload could not be kept in {dir}: check the free space there")]
    Spool {
        dir: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the upload is not a .tar.gz of the function's folder")]
    NotAnArchive(#[source] std::io::Error),
    #[error("the folder has {0}: leave it out")]
    Entry(String),
    #[error(transparent)]
    Record(#[from] UnpackError),
    #[error("the folder has no fn.toml at its top level: `fn init` makes one")]
    NoConfig,
    #[error(transparent)]
    Config(#[from] function_config::FunctionConfigError),
}

impl From<UploadError> for ApiError {
    fn from(error: UploadError) -> Self {
        let code = match &error {
            UploadError::TooLarge => ErrorCode::TooLarge,
            UploadError::Interrupted(_) | UploadError::NotAnArchive(_) => ErrorCode::BadRequest,
            UploadError::Spool { .. } => ErrorCode::Internal,
            UploadError::Entry(_) | UploadError::Record(_) | UploadError::NoConfig | UploadError::Config(_) => {
                ErrorCode::InvalidConfig
            }
        };
        Self::new(code, rekindle_wire::error::chain(&error))
    }
}

/// A folder that was received completely.
#[derive(Debug)]
pub(crate) struct Upload {
    /// Removed when dropped.
    pub(crate) file: NamedTempFile,
    /// Digest of the archive's bytes.
    pub(crate) digest: blake3::Hash,
    pub(crate) folder: Folder,
}

#[derive(Debug)]
pub(crate) struct Folder {
    pub(crate) config: FunctionConfig,
    /// The files without the config, in the order of their paths.
    pub(crate) files: Vec<SourceFile>,
}

impl Folder {
    /// Digest of the files and of what builds make of them. The same for each archive of the same ones.
    pub(crate) fn code(&self) -> blake3::Hash {
        /// Another one where builds add something to a function's files: then the next deploy builds. Since 1 they add
        /// the reaper.
        const BUILD_FORM: u8 = 1;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&[BUILD_FORM]);
        for SourceFile { path, kind, digest } in &self.files {
            // No path has a zero byte, and the others are words.
            hasher.update(format!("{path}\0{kind:?}\0{digest}\0").as_bytes());
        }
        hasher.finalize()
    }
}

/// Receives a folder and reads its config.
pub(crate) async fn receive(body: Body, dir: &Path) -> Result<Upload, UploadError> {
    let spool = |source| UploadError::Spool {
        dir: dir.to_owned(),
        source,
    };
    let file = NamedTempFile::with_prefix_in("upload-", dir).map_err(spool)?;
    let mut out = tokio::fs::File::from_std(file.reopen().map_err(spool)?);
    let mut hasher = blake3::Hasher::new();
    let mut size = 0_u64;
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(UploadError::Interrupted)?;
        size += chunk.len() as u64;
        if size > UPLOAD_MAX {
            return Err(UploadError::TooLarge);
        }
        hasher.update(&chunk);
        out.write_all(&chunk).await.map_err(spool)?;
    }
    out.flush().await.map_err(spool)?;
    let archive = file.reopen().map_err(spool)?;
    let folder = tokio::task::spawn_blocking(move || look_through(archive))
        .await
        .map_err(|e| spool(std::io::Error::other(e)))??;
    Ok(Upload {
        file,
        digest: hasher.finalize(),
        folder,
    })
}

/// Checks every entry's path and type, reads the config, and hashes the files. Blocks.
pub(crate) fn look_through(archive: File) -> Result<Folder, UploadError> {
    let unzipped = MultiGzDecoder::new(std::io::BufReader::new(archive)).take(UNPACKED_MAX);
    let mut archive = tar::Archive::new(unzipped);
    let mut extension = Extension::default();
    let mut links = HashSet::new();
    let (mut config, mut files) = (None, Vec::new());
    let (mut unpacked, mut names, mut entries) = (0_u64, 0, 0);
    // Raw, as workers read it: the tar crate would read extension records of any length into memory.
    for entry in archive.entries().map_err(UploadError::NotAnArchive)?.raw(true) {
        let mut entry = entry.map_err(UploadError::NotAnArchive)?;
        unpacked = unpacked.saturating_add(entry.size());
        if entries >= ENTRIES_MAX || unpacked >= UNPACKED_MAX {
            return Err(UploadError::Entry(format!(
                "more than {ENTRIES_MAX} files or {} GiB",
                UNPACKED_MAX >> 30
            )));
        }
        if extension.read(&mut entry)? {
            continue;
        }
        entries += 1;
        let Extension { path, link, .. } = std::mem::take(&mut extension);
        let name = path.unwrap_or_else(|| entry.header().path_bytes().into_owned());
        names += name.len();
        if names > NAMES_MAX {
            return Err(UploadError::Entry(format!(
                "paths of more than {} MiB",
                NAMES_MAX >> 20
            )));
        }
        let path = inside(&name)?;
        if path.ancestors().skip(1).any(|a| links.contains(a)) {
            return Err(UploadError::Entry(format!("{} below a symbolic link", path.display())));
        }
        let kind = entry.header().entry_type();
        let source = |kind, digest: &str| SourceFile {
            path: path.to_string_lossy().into_owned(),
            kind,
            digest: digest.to_owned(),
        };
        let target = || {
            let target = link.or_else(|| entry.header().link_name_bytes().map(Cow::into_owned));
            target.unwrap_or_default()
        };
        if kind.is_symlink() {
            files.push(source(SourceKind::Link, &blake3::hash(&target()).to_hex()));
            links.insert(path);
        } else if kind.is_hard_link() {
            let target = target();
            inside(&target)?;
            files.push(source(SourceKind::Link, &blake3::hash(&target).to_hex()));
        } else if kind.is_file() && path == Path::new(function_config::FILE_NAME) {
            let mut text = String::new();
            (&mut entry)
                .take(CONFIG_MAX)
                .read_to_string(&mut text)
                .map_err(UploadError::NotAnArchive)?;
            config = Some(function_config::parse(&text)?);
        } else if kind.is_file() {
            let is_executable = entry.header().mode().unwrap_or_default() & 0o111 != 0;
            let mut hasher = blake3::Hasher::new();
            std::io::copy(&mut entry, &mut hasher).map_err(UploadError::NotAnArchive)?;
            let kind = match is_executable {
                true => SourceKind::Executable,
                false => SourceKind::File,
            };
            files.push(source(kind, &hasher.finalize().to_hex()));
        } else if kind.is_dir() && path == Path::new("") {
            // The folder itself, which only some archives have.
        } else if kind.is_dir() {
            files.push(source(SourceKind::Folder, ""));
        } else {
            return Err(UploadError::Entry(format!(
                "{}, which is neither file, folder nor link",
                path.display()
            )));
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    let config = config.ok_or(UploadError::NoConfig)?;
    Ok(Folder { config, files })
}

#[cfg(test)]
mod tests;

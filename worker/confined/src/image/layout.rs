//! Reads the documents of an image layout.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use sha2::{Digest as _, Sha256};

use super::{Config, ImageError, PLATFORM, malformed};

/// Maximum size of an index, a manifest or a configuration in bytes.
const DOCUMENT_MAX: u64 = 4 << 20;
/// Maximum number of indexes on the way to a manifest.
const INDEXES_MAX: usize = 4;
/// Maximum number of layers. Container engines allow as many.
const LAYERS_MAX: usize = 127;
/// Maximum size of a command and its environment in bytes, as JSON. They are started by one message of 128 KiB, which
/// has the variables of `fn.toml`, too.
const PROGRAM_MAX: usize = 96 << 10;
/// Maximum number of platforms in an error.
const TOLD_MAX: usize = 10;

/// A reference to a blob.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Descriptor {
    #[serde(default, rename = "mediaType")]
    media_type: String,
    pub(super) digest: String,
    pub(super) size: u64,
    platform: Option<Platform>,
}

#[derive(Debug, Clone, Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

impl Platform {
    fn is_ours(&self) -> bool {
        [self.architecture.as_str(), self.os.as_str()] == PLATFORM
    }
}

#[derive(Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Manifest {
    config: Descriptor,
    layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Configuration {
    #[serde(flatten)]
    platform: Platform,
    config: Option<Execution>,
}

/// Each of its values may be `null`.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Execution {
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    env: Option<Vec<String>>,
    working_dir: Option<String>,
    exposed_ports: Option<BTreeMap<String, IgnoredAny>>,
}

pub(super) struct Image {
    pub(super) config: Config,
    /// The lowest first.
    pub(super) layers: Vec<Descriptor>,
}

pub(super) struct Layout(OwnedFd);

impl Layout {
    pub(super) fn new(directory: OwnedFd) -> Self {
        Self(directory)
    }

    fn open(&self, path: &str) -> io::Result<File> {
        let how = OpenHow::new()
            .flags(OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)
            .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
        Ok(openat2(&self.0, path, how)?.into())
    }

    /// Opens a blob. What is read from it is checked by [`Blob::end`].
    pub(super) fn blob(&self, descriptor: &Descriptor) -> Result<Blob, ImageError> {
        let wrong = || ImageError::Blob(descriptor.digest.chars().take(80).collect());
        let hex = descriptor.digest.strip_prefix("sha256:").ok_or_else(wrong)?;
        if hex.len() != 64 || !hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(wrong());
        }
        let file = self.open(&format!("blobs/sha256/{hex}")).map_err(|_| wrong())?;
        Ok(Blob {
            inner: file.take(descriptor.size.saturating_add(1)),
            hasher: Sha256::new(),
            read: 0,
            expected: descriptor.clone(),
        })
    }

    fn document<T: DeserializeOwned>(&self, descriptor: &Descriptor) -> Result<T, ImageError> {
        if descriptor.size > DOCUMENT_MAX {
            return Err(malformed(format!("{} has more than 4 MiB", descriptor.digest)));
        }
        let mut blob = self.blob(descriptor)?;
        let mut bytes = Vec::new();
        blob.read_to_end(&mut bytes)
            .map_err(|_| ImageError::Blob(descriptor.digest.clone()))?;
        blob.end()?;
        serde_json::from_slice(&bytes).map_err(|e| malformed(format!("{}: {e}", descriptor.digest)))
    }

    /// Finds the image of our platform.
    pub(super) fn image(&self) -> Result<Image, ImageError> {
        let index = self
            .open("index.json")
            .map_err(|e| malformed(format!("index.json: {e}")))?;
        let mut bytes = Vec::new();
        let read = index.take(DOCUMENT_MAX).read_to_end(&mut bytes);
        read.map_err(|e| malformed(format!("index.json: {e}")))?;
        let mut index: Index = serde_json::from_slice(&bytes).map_err(|e| malformed(format!("index.json: {e}")))?;
        for _ in 0..INDEXES_MAX {
            let chosen = choose(&index)?;
            if is_index(&chosen.media_type) {
                index = self.document(&chosen)?;
                continue;
            }
            let manifest: Manifest = self.document(&chosen)?;
            if manifest.layers.len() > LAYERS_MAX {
                return Err(malformed(format!("it has more than {LAYERS_MAX} layers")));
            }
            let configuration: Configuration = self.document(&manifest.config)?;
            if !configuration.platform.is_ours() {
                return Err(ImageError::Platform(named(&configuration.platform)));
            }
            let execution = configuration.config.unwrap_or_default();
            return Ok(Image {
                config: execution.config(chosen.digest)?,
                layers: manifest.layers,
            });
        }
        Err(malformed("its indexes name only other indexes"))
    }
}

fn is_index(media_type: &str) -> bool {
    media_type.ends_with("image.index.v1+json") || media_type.ends_with("manifest.list.v2+json")
}

/// Chooses the first entry of our platform, or else the only one without a platform.
fn choose(index: &Index) -> Result<Descriptor, ImageError> {
    let ours = |d: &&Descriptor| d.platform.as_ref().is_some_and(Platform::is_ours);
    if let Some(found) = index.manifests.iter().find(ours) {
        return Ok(found.clone());
    }
    let mut unnamed = index.manifests.iter().filter(|d| d.platform.is_none());
    match (unnamed.next(), unnamed.next()) {
        (Some(only), None) => Ok(only.clone()),
        (Some(_), Some(_)) => Err(malformed("it has several images: save one of them")),
        (None, _) => {
            let platforms = index.manifests.iter().filter_map(|d| d.platform.as_ref());
            let told: Vec<_> = platforms.take(TOLD_MAX).map(named).collect();
            Err(match told.is_empty() {
                true => malformed("its index is empty"),
                false => ImageError::Platform(told.join(", ")),
            })
        }
    }
}

fn named(platform: &Platform) -> String {
    let text = format!("{}/{}", platform.os, platform.architecture);
    text.chars().filter(|c| !c.is_control()).take(40).collect()
}

impl Execution {
    fn config(self, digest: String) -> Result<Config, ImageError> {
        let mut command = self.entrypoint.unwrap_or_default();
        command.extend(self.cmd.unwrap_or_default());
        let variables = self.env.unwrap_or_default();
        let env = variables.iter().filter_map(|variable| variable.split_once('='));
        let env: BTreeMap<_, _> = env.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let texts = command.iter().chain(env.keys()).chain(env.values());
        if texts.into_iter().any(|text| text.contains('\0')) {
            return Err(malformed("its configuration has a NUL character"));
        }
        let length = serde_json::to_string(&(&command, &env)).map_err(malformed)?.len();
        if length > PROGRAM_MAX {
            let most = PROGRAM_MAX >> 10;
            return Err(malformed(format!(
                "its command and variables take {length} bytes, and at most {most} KiB can be started: put them into \
                 files"
            )));
        }
        let cwd = self.working_dir.filter(|path| !path.is_empty());
        let cwd = Path::new("/").join(cwd.unwrap_or_default());
        let ports = self.exposed_ports.unwrap_or_default();
        let tcp = |port: &String| port.strip_suffix("/tcp").unwrap_or(port).parse().ok();
        Ok(Config {
            digest,
            command,
            env,
            cwd: cwd.to_string_lossy().into_owned(),
            ports: ports.keys().filter_map(tcp).collect(),
        })
    }
}

/// A blob that is being read.
pub(super) struct Blob {
    inner: io::Take<File>,
    hasher: Sha256,
    read: u64,
    expected: Descriptor,
}

impl Read for Blob {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(into)?;
        self.hasher.update(&into[..length]);
        self.read += length as u64;
        Ok(length)
    }
}

impl Blob {
    /// Reads to the end, and checks size and digest.
    pub(super) fn end(mut self) -> Result<(), ImageError> {
        let mut rest = [0; 64 << 10];
        loop {
            match self.read(&mut rest) {
                Ok(0) => break,
                Ok(_) => {}
                Err(_) => return Err(ImageError::Blob(self.expected.digest)),
            }
        }
        let found: String = self.hasher.finalize().iter().map(|b| format!("{b:02x}")).collect();
        match self.read == self.expected.size && self.expected.digest == format!("sha256:{found}") {
            true => Ok(()),
            false => Err(ImageError::Blob(self.expected.digest)),
        }
    }
}

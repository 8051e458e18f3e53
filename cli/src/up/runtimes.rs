//! Imports the runtimes' root filesystems, which `functions/runtimes/build.sh` made, into the store. Each archive
//! becomes a layer, and `runtimes/{base}.json` says which layer the runtime is now. No archive is read twice: a note in
//! the cache remembers its layer, as long as its size and time stay the same. Archives may be on a read-only
//! filesystem, as a package's are for a unit of systemd.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use rekindle_snapshotter::layer::publish_layer;
use rekindle_snapshotter::{Digest, Owner, Publication, Store, keys};
use rekindle_wire::function_config::Base;
use rekindle_wire::internal::{BUILD_TOOLS, LayerRef, RuntimeAlias};
use serde::{Deserialize, Serialize};

use super::layout::Layout;
use super::{role, store};
use crate::args::{PlatformDirs, S3Args};
use crate::show;

/// Where an archive lists its content: a package and its version on each line.
const PACKAGES: &str = "opt/rekindle/packages";
const PACKAGES_MAX: u64 = 1 << 20;
/// The directory of the cache with notes of archives, and with what is compressed to be stored.
const IMPORTED: &str = "imported";

/// `fn runtimes import`: into a store that is not this machine's own.
pub(crate) fn run(places: &PlatformDirs, s3: &S3Args) -> Result<ExitCode> {
    let layout = Layout::of(places).context("the current directory is gone")?;
    let endpoint = role::endpoint(s3)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("the async runtime could not be started")?;
    let imported = runtime.block_on(async {
        let store = store::named(s3, &endpoint).await?;
        Box::pin(import(&store, &layout.cache)).await
    })?;
    for (name, alias) in &imported {
        print(name, alias);
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints what a runtime is now.
pub(crate) fn print(name: &str, alias: &RuntimeAlias) {
    say!(
        "{name} is {} ({}, {})",
        alias.layer.digest,
        show::bytes(alias.layer.tar_bytes),
        show::count(alias.packages.len(), "package")
    );
}

/// The archive of a root filesystem.
pub(crate) fn archive(cache: &Path, name: &str) -> PathBuf {
    cache.join("runtimes").join(format!("{name}.tar"))
}

/// Imports every archive in `<cache>/runtimes/`. Missing ones are skipped, but at least one must exist.
pub(crate) async fn import(store: &Store, cache: &Path) -> Result<Vec<(&'static str, RuntimeAlias)>> {
    let mut imported = Vec::new();
    let usual = Base::USUAL.map(Base::as_str);
    for name in Base::ALL.map(Base::as_str).into_iter().chain([BUILD_TOOLS]) {
        let tar = archive(cache, name);
        if tar.exists() {
            imported.push((name, Box::pin(import_one(store, name, cache)).await?));
        } else if name == BUILD_TOOLS || usual.contains(&name) {
            let file = tar.display();
            tracing::warn!(
                target: super::LOG, %file,
                "this runtime is not built: functions that need it cannot be deployed"
            );
        }
    }
    if imported.is_empty() {
        let folder = cache.join("runtimes");
        bail!("{}: no runtime is built: run scripts/setup.sh host", folder.display());
    }
    Ok(imported)
}

/// Stores an archive unless the store has it, and has the runtime's name say so.
pub(crate) async fn import_one(store: &Store, name: &str, cache: &Path) -> Result<RuntimeAlias> {
    let tar = archive(cache, name);
    let scratch = cache.join(IMPORTED);
    fs::create_dir_all(&scratch).with_context(|| format!("{}: cannot be made", scratch.display()))?;
    let note = ArchiveNote(scratch.join(format!("{name}.json")));
    let identity = identity(&tar)?;
    if let Some(alias) = note.read(&identity)
        && is_stored(store, name, &alias).await?
    {
        return Ok(alias);
    }
    // Until the alias names the layer, nothing else does.
    let publication = Publication::new(store.clone(), Owner::other());
    let layer = Box::pin(publish_layer(store, &publication, &tar, &scratch))
        .await
        .with_context(|| format!("{}: the runtime cannot be stored", tar.display()))?;
    let listed = tar.clone();
    let packages = tokio::task::spawn_blocking(move || packages(&listed))
        .await
        .context("reading the archive was given up")?
        .with_context(|| format!("{}: cannot be read", tar.display()))?;
    let alias = RuntimeAlias { layer, packages };
    let json = serde_json::to_vec(&alias).context("the alias cannot be written as JSON")?;
    let key = alias_key(name);
    store
        .put(&key, json.into())
        .await
        .with_context(|| format!("{key}: cannot be stored"))?;
    publication.finish().await;
    note.write(identity, &alias)?;
    let LayerRef { digest, tar_bytes } = &alias.layer;
    tracing::info!(target: super::LOG, runtime = name, digest, tar_bytes, "runtime imported");
    Ok(alias)
}

fn alias_key(name: &str) -> String {
    format!("runtimes/{name}.json")
}

/// Whether the store has the same alias for the runtime and has its layer: it may be another store than last time.
async fn is_stored(store: &Store, name: &str, alias: &RuntimeAlias) -> Result<bool> {
    let key = alias_key(name);
    let there = match store.get(&key).await {
        Ok(bytes) => serde_json::from_slice::<RuntimeAlias>(&bytes).is_ok_and(|a| a == *alias),
        Err(e) if e.is_not_found() => false,
        Err(e) => return Err(e).with_context(|| format!("{key}: cannot be read")),
    };
    let Ok(digest) = alias.layer.digest.parse::<Digest>() else {
        return Ok(false);
    };
    match store.head(&keys::layer(&digest)).await {
        Ok(_) => Ok(there),
        Err(e) if e.is_not_found() => Ok(false),
        Err(e) => Err(e).with_context(|| format!("layer {digest}: cannot be looked for")),
    }
}

/// What distinguishes an archive from a later one of the same name without reading it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    bytes: u64,
    inode: u64,
    changed_s: i64,
    changed_ns: i64,
}

fn identity(tar: &Path) -> Result<Identity> {
    let meta = fs::metadata(tar).with_context(|| format!("{}: cannot be read", tar.display()))?;
    Ok(Identity {
        bytes: meta.len(),
        inode: meta.ino(),
        changed_s: meta.ctime(),
        changed_ns: meta.ctime_nsec(),
    })
}

/// The note of an archive. Losing it costs only time.
struct ArchiveNote(PathBuf);

#[derive(Serialize, Deserialize)]
struct ArchiveRecord {
    identity: Identity,
    alias: RuntimeAlias,
}

impl ArchiveNote {
    fn read(&self, identity: &Identity) -> Option<RuntimeAlias> {
        let noted: ArchiveRecord = serde_json::from_slice(&fs::read(&self.0).ok()?).ok()?;
        (noted.identity == *identity).then_some(noted.alias)
    }

    fn write(&self, identity: Identity, alias: &RuntimeAlias) -> Result<()> {
        let noted = ArchiveRecord {
            identity,
            alias: alias.clone(),
        };
        let json = serde_json::to_vec(&noted).context("the note cannot be written as JSON")?;
        // With the process id: platforms with the same cache may import at the same time.
        let new = self.0.with_extension(format!("new.{}", std::process::id()));
        fs::write(&new, json)
            .and_then(|()| fs::rename(&new, &self.0))
            .with_context(|| format!("{}: cannot be written", self.0.display()))
    }
}

/// The archive's list of its content: package to version. Empty if it has none. Blocks.
pub(crate) fn packages(tar: &Path) -> io::Result<BTreeMap<String, String>> {
    let mut archive = tar::Archive::new(File::open(tar)?);
    for entry in archive.entries_with_seek()? {
        let entry = entry?;
        let path = entry.path()?.into_owned();
        // GNU tar writes "./opt", others "opt".
        if path.strip_prefix(".").unwrap_or(&path) == Path::new(PACKAGES) {
            let mut text = String::new();
            entry.take(PACKAGES_MAX).read_to_string(&mut text)?;
            let lines = text.lines().filter_map(|l| l.split_once(' '));
            return Ok(lines.map(|(p, v)| (p.to_owned(), v.to_owned())).collect());
        }
    }
    Ok(BTreeMap::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(path: &Path, packages: &str) {
        let mut builder = tar::Builder::new(File::create(path).unwrap());
        for (name, text) in [("./etc/hostname", "x"), ("./opt/rekindle/packages", packages)] {
            let mut header = tar::Header::new_gnu();
            header.set_size(u64::try_from(text.len()).unwrap());
            header.set_mode(0o644);
            builder.append_data(&mut header, name, text.as_bytes()).unwrap();
        }
        builder.finish().unwrap();
    }

    #[test]
    fn packages_are_read_from_the_archive() {
        let dir = tempfile::tempdir().unwrap();
        let tar = dir.path().join("base.tar");
        archive(&tar, "libc6 2.36\nbusybox 1:1.35\n");
        let packages = packages(&tar).unwrap();
        assert_eq!(packages["libc6"], "2.36");
        assert_eq!(packages["busybox"], "1:1.35");
    }

    #[test]
    fn a_note_holds_until_the_archive_changes() {
        let dir = tempfile::tempdir().unwrap();
        let tar = dir.path().join("base.tar");
        archive(&tar, "a 1\n");
        let alias = RuntimeAlias {
            layer: LayerRef {
                digest: "d".to_owned(),
                tar_bytes: 1,
            },
            packages: BTreeMap::new(),
        };
        let note = ArchiveNote(dir.path().join("base.json"));
        assert_eq!(note.read(&identity(&tar).unwrap()), None);
        note.write(identity(&tar).unwrap(), &alias).unwrap();
        assert_eq!(note.read(&identity(&tar).unwrap()), Some(alias));
        let newer = dir.path().join("newer");
        archive(&newer, "a 2\n");
        fs::rename(&newer, &tar).unwrap();
        assert_eq!(note.read(&identity(&tar).unwrap()), None);
    }

    #[tokio::test]
    async fn an_import_leaves_the_archive_s_directory_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (cache, packaged) = (dir.path().join("cache"), dir.path().join("packaged"));
        fs::create_dir(&packaged).unwrap();
        fs::create_dir(&cache).unwrap();
        std::os::unix::fs::symlink(&packaged, cache.join("runtimes")).unwrap();
        archive(&packaged.join("base.tar"), "a 1\n");
        // Whoever writes there fails on a read-only filesystem, root too.
        let before = fs::metadata(&packaged).unwrap().modified().unwrap();
        let store = rekindle_store::Directory::open(&dir.path().join("objects")).unwrap();
        let first = Box::pin(import_one(&store, "base", &cache)).await.unwrap();
        assert_eq!(Box::pin(import_one(&store, "base", &cache)).await.unwrap(), first);
        assert_eq!(fs::metadata(&packaged).unwrap().modified().unwrap(), before);
    }
}

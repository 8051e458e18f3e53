//! The root filesystems, as a store has them once `fn` has imported them, and as a worker has them once it has unpacked
//! them. Every platform under test has a store and a worker's cache of its own. Compressing them again for each takes
//! 2.4 s of processor time, and unpacking one takes up to 1.3 s. So each build of `fn` imports them once, the first
//! worker that unpacks one leaves it for others, and both are linked into new directories. Nothing writes to an object
//! or to a layer's file in place.

use std::collections::hash_map::DefaultHasher;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::hash::{Hash as _, Hasher as _};
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::binaries::{self, Programs};
use crate::s3_server::{self, KEY, SECRET};

/// What the names of their directories begin with, beside the programs.
const PREFIX: &str = "imported-";
/// Where a worker's cache has unpacked layers.
const WORKER_LAYERS: &str = "worker/layers";
/// Where those that are linked into such caches are kept.
const LAYERS: &str = "layers";
/// How long tests may need them.
const IN_USE: Duration = Duration::from_secs(3600);

/// Fills a platform's own store, which must be new, and its cache.
pub(crate) fn fill_own_store(root: &Path) -> Result<()> {
    link(&made()?.join("own"), &root.join("data/s3"))?;
    fill_cache(&root.join("cache"))
}

/// Fills the directory of an S3 server of ours, which must be new.
pub(crate) fn fill_server(root: &Path) -> Result<()> {
    link(&made()?.join("served"), root)
}

/// Tells a platform's cache what the archives became, so that it does not read them.
pub(crate) fn fill_cache(cache: &Path) -> Result<()> {
    link(&made()?.join("cache/imported"), &cache.join("imported"))
}

/// Gives a worker with this cache, which must be new, the layers that workers have unpacked.
pub(crate) fn fill_layers(cache: &Path) -> Result<()> {
    for layer in fs::read_dir(made()?.join(LAYERS)).into_iter().flatten().flatten() {
        let name = layer.file_name();
        link_tree(&layer.path(), &cache.join(WORKER_LAYERS), &name)?;
    }
    Ok(())
}

/// Keeps the layers of root filesystems that a worker with this cache has unpacked. It must have ended.
pub(crate) fn keep_layers(cache: &Path) -> Result<()> {
    let (made, unpacked) = (made()?, cache.join(WORKER_LAYERS));
    let kept = made.join(LAYERS);
    for alias in fs::read_dir(made.join("cache/imported"))?.flatten() {
        let alias: serde_json::Value = serde_json::from_slice(&fs::read(alias.path())?)?;
        let digest = alias["alias"]["layer"]["digest"]
            .as_str()
            .context("an alias without a layer")?;
        if kept.join(digest).exists() || !unpacked.join(digest).is_dir() {
            continue;
        }
        let new = tempfile::Builder::new().prefix(".new").tempdir_in(made)?;
        link_tree(&unpacked.join(digest), new.path(), OsStr::new(digest))?;
        fs::create_dir_all(&kept)?;
        // Another may have been quicker.
        let _exists = fs::rename(new.path().join(digest), kept.join(digest));
    }
    Ok(())
}

/// Makes a tree with the same files, in directories of its own; none where files cannot be linked, as on another
/// filesystem.
fn link_tree(from: &Path, into: &Path, name: &OsStr) -> Result<()> {
    fs::create_dir_all(into).with_context(|| format!("{}: cannot be made", into.display()))?;
    // A worker takes what has the name of a layer for all of it.
    let new = into.join(".tmp-linked");
    let made = Command::new("cp").arg("-al").arg("--").arg(from).arg(&new).output();
    match made.context("cp (coreutils) cannot be started")?.status.success() {
        true => fs::rename(&new, into.join(name)).context("a layer cannot be renamed"),
        false => fs::remove_dir_all(&new).or(Ok(())),
    }
}

/// Their directory, which is made if there is none for these programs and archives.
fn made() -> Result<&'static Path> {
    static MADE: LazyLock<Result<PathBuf>> = LazyLock::new(find_or_make);
    match &*MADE {
        Ok(made) => Ok(made),
        Err(e) => Err(anyhow::anyhow!("{e:#}")),
    }
}

fn find_or_make() -> Result<PathBuf> {
    let (programs, runtimes) = (Programs::find(None)?, binaries::runtimes());
    let beside = programs.directory();
    let lock = File::create(beside.join("imported.lock")).context("no lock can be made")?;
    lock.lock().context("the lock cannot be taken")?;
    let made = beside.join(format!("{PREFIX}{:016x}", key(&programs, runtimes)?));
    if made.exists() {
        return Ok(made);
    }
    // Those of earlier builds go, unless tests of one may still run.
    for old in fs::read_dir(beside)?.flatten() {
        let is_theirs = old.file_name().to_string_lossy().starts_with(PREFIX);
        if is_theirs && old.metadata()?.modified()?.elapsed().is_ok_and(|age| age > IN_USE) {
            fs::remove_dir_all(old.path())?;
        }
    }
    let new = beside.join(format!("{PREFIX}new"));
    // Whoever began it was killed.
    if new.exists() {
        fs::remove_dir_all(&new)?;
    }
    fs::create_dir_all(new.join("cache"))?;
    std::os::unix::fs::symlink(runtimes, new.join("cache/runtimes"))?;
    let own = format!("file://{}", new.join("own").display());
    import(&programs, &new.join("cache"), &own, &[])?;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = s3_server::start(&new.join("served"), Ipv4Addr::LOCALHOST, async { drop(stopped.await) });
    let credentials = s3_server::environment(KEY, SECRET);
    import(&programs, &new.join("cache"), &format!("http://{server}"), &credentials)?;
    drop(stop);
    fs::rename(&new, &made)?;
    Ok(made)
}

/// What tells these programs and archives from others, without reading them.
fn key(programs: &Programs, runtimes: &Path) -> Result<u64> {
    let mut hasher = DefaultHasher::new();
    // Archives of other runtimes may come meanwhile: a platform imports them itself.
    let archives = binaries::RUNTIMES.map(|name| runtimes.join(format!("{name}.tar")));
    for file in archives.into_iter().chain([programs.cli()]) {
        let meta = fs::metadata(&file).with_context(|| format!("{}: cannot be read", file.display()))?;
        (file, meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec()).hash(&mut hasher);
    }
    Ok(hasher.finish())
}

fn import(programs: &Programs, cache: &Path, endpoint: &str, env: &[(String, String)]) -> Result<()> {
    let mut command = Command::new(programs.cli());
    command
        .args(["runtimes", "import", "--s3-endpoint", endpoint])
        .env("FN_CACHE", cache)
        .envs(env.iter().map(|(k, v)| (k, v)))
        .stdin(Stdio::null());
    let ended = command.output().context("`fn runtimes import` cannot be started")?;
    ensure!(
        ended.status.success(),
        "{endpoint}: {}",
        String::from_utf8_lossy(&ended.stderr)
    );
    Ok(())
}

/// Links the files below a directory into another, but for a server's lock; copies them to another filesystem.
fn link(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("{}: cannot be made", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("{}: cannot be read", from.display()))? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            link(&source, &target)?;
            continue;
        }
        if entry.file_name() == "LOCK" {
            continue;
        }
        match fs::hard_link(&source, &target) {
            Err(e) if e.kind() == io::ErrorKind::CrossesDevices => fs::copy(&source, &target).map(drop),
            other => other,
        }
        .with_context(|| format!("{}: cannot be linked", target.display()))?;
    }
    Ok(())
}

//! `fn backup` and `fn restore-backup`: everything that a platform on one machine must not lose, in one archive.
//!
//! The archive is a tar file: `backup.json` first, then the database as of one moment, the keys, the cluster's
//! authority, and last the platform's own objects. Objects are whole files that are replaced, never changed. The
//! database is copied before them, so that everything it names existed then.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::UNIX_EPOCH;

use anyhow::{Context as _, Result, bail};
use rekindle_wire::clock::unix_ms;
use serde::{Deserialize, Serialize};

use crate::args::{BackupArgs, RestoreBackupArgs};
use crate::show;
use crate::up::layout::{Layout, make_private};
use crate::up::master_key::MASTER_KEY;
use crate::up::membership::AUTHORITY;
use crate::up::pid;

const HEAD: &str = "backup.json";
const DATABASE: &str = "scheduler.db";
const OBJECTS: &str = "s3";
/// Keys that prove the platform to its clients and its parts to each other, and the key of the database's secrets.
const KEYS: [&str; 4] = ["admin.key", "cluster.token", "s3.key", MASTER_KEY];
const FORMAT: u32 = 1;

/// The archive's description of itself.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    format: u32,
    /// Version of `fn` that made it.
    version: String,
    /// When it was made, milliseconds since the Unix epoch.
    made_unix_ms: u64,
}

/// Writes an archive; the platform may run meanwhile.
pub(crate) fn backup(args: &BackupArgs) -> Result<ExitCode> {
    let layout = Layout::of(&args.places).context("the current directory is gone")?;
    let database = layout.data.join(DATABASE);
    if !database.exists() {
        bail!(
            "{}: no platform has its data there: name its --data; a cluster's database is backed up by PostgreSQL's \
             own means",
            layout.data.display()
        );
    }
    if args.file.exists() {
        bail!(
            "{}: is there already: name another file, or remove it",
            args.file.display()
        );
    }
    let copy = tempfile::TempDir::new_in(&layout.data).context("no room for a copy of the database")?;
    let head = Head {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        made_unix_ms: unix_ms().cast_unsigned(),
    };
    let copied = copy.path().join(DATABASE);
    runtime()?
        .block_on(rekindle_scheduler::copy_database(&database, &copied))
        .with_context(|| format!("{}: cannot be copied", database.display()))?;
    let new = args.file.with_extension("new");
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new);
    let file = file.with_context(|| format!("{}: cannot be written", new.display()))?;
    let mut archive = tar::Builder::new(BufWriter::new(file));
    let text = serde_json::to_vec(&head).context("the head cannot be written")?;
    let mut entry = tar::Header::new_gnu();
    entry.set_size(text.len() as u64);
    entry.set_mode(0o600);
    let mut write = |archive: &mut tar::Builder<BufWriter<File>>| -> io::Result<u64> {
        archive.append_data(&mut entry, HEAD, text.as_slice())?;
        archive.append_path_with_name(&copied, DATABASE)?;
        for key in KEYS {
            let path = layout.data.join(key);
            if path.exists() {
                archive.append_path_with_name(&path, key)?;
            }
        }
        // The authority with its tokens, if there is one.
        append_objects(archive, &layout.data.join(AUTHORITY), Path::new(AUTHORITY))?;
        append_objects(archive, &layout.data.join(OBJECTS), Path::new(OBJECTS))
    };
    let objects = write(&mut archive).with_context(|| format!("{}: cannot be written", new.display()))?;
    archive
        .into_inner()
        .and_then(|out| out.into_inner().map_err(io::IntoInnerError::into_error))
        .and_then(|file| file.sync_all())
        .and_then(|()| fs::rename(&new, &args.file))
        .with_context(|| format!("{}: cannot be written", args.file.display()))?;
    let size = fs::metadata(&args.file).map(|m| m.len()).unwrap_or(0);
    say!(
        "{}: {} of metadata and {}; it holds the keys too, so keep it secret",
        args.file.display(),
        show::bytes(size),
        show::count(usize::try_from(objects).unwrap_or(usize::MAX), "object file")
    );
    Ok(ExitCode::SUCCESS)
}

/// Adds a directory. A file that disappears meanwhile was no longer needed. Returns the number of files.
fn append_objects(archive: &mut tar::Builder<BufWriter<File>>, from: &Path, name: &Path) -> io::Result<u64> {
    let entries = match fs::read_dir(from) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(e) => return Err(e),
    };
    archive.append_dir(name, from)?;
    let mut count = 0;
    for entry in entries {
        let entry = entry?;
        let (path, name) = (entry.path(), name.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            count += append_objects(archive, &path, &name)?;
            continue;
        }
        match File::open(&path) {
            Ok(mut file) => {
                archive.append_file(&name, &mut file)?;
                count += 1;
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    Ok(count)
}

/// Puts an archive's content in place. The previous content is kept beside it.
pub(crate) fn restore(args: &RestoreBackupArgs) -> Result<ExitCode> {
    let layout = Layout::of(&args.places).context("the current directory is gone")?;
    make_private([layout.data.clone()])?;
    let Some(_lock) = pid::lock(&layout.data)? else {
        bail!(
            "{}: a platform runs there: stop it first (`fn down`)",
            layout.data.display()
        );
    };
    let open = || File::open(&args.file).with_context(|| format!("{}: cannot be read", args.file.display()));
    let head = head(open()?).with_context(|| format!("{}: is no backup of a platform", args.file.display()))?;
    let changed = changed_unix_ms(&layout.data);
    if changed.is_some_and(|at| at > head.made_unix_ms) && !args.overwrite {
        bail!(
            "{}: holds changes that are newer than the backup: say --overwrite to go back (what is there is kept \
             beside it)",
            layout.data.display()
        );
    }
    let unpacked = tempfile::TempDir::new_in(&layout.data).context("no room for what is in the backup")?;
    tar::Archive::new(BufReader::new(open()?))
        .unpack(unpacked.path())
        .with_context(|| format!("{}: cannot be unpacked", args.file.display()))?;
    runtime()?
        .block_on(rekindle_scheduler::check_database(&unpacked.path().join(DATABASE)))
        .context(
            "the backup's database cannot be used by this version of fn: install the one that made it, or a newer one",
        )?;
    let names = [DATABASE, "scheduler.db-wal", "scheduler.db-shm", OBJECTS]
        .into_iter()
        .chain(KEYS)
        // A backup from before a cluster's authority was made does not remove the authority.
        .chain(unpacked.path().join(AUTHORITY).exists().then_some(AUTHORITY));
    let aside = layout.data.join(format!("before-restore-{}", unix_ms()));
    make_private([aside.clone()])?;
    for name in names {
        let (there, new) = (layout.data.join(name), unpacked.path().join(name));
        let moved = moved(&there, &aside.join(name)).and_then(|()| moved(&new, &there));
        moved.with_context(|| {
            format!(
                "{}: cannot be put in place; what was there is in {}",
                there.display(),
                aside.display()
            )
        })?;
    }
    // Empty if there was nothing.
    let _kept = fs::remove_dir(&aside);
    for path in KEYS.into_iter().chain([AUTHORITY]).map(|key| layout.data.join(key)) {
        keep_private(&path).with_context(|| format!("{}: stays readable", path.display()))?;
    }
    say!(
        "{} is as it was when the backup was made: start it with `fn up`",
        layout.data.display()
    );
    Ok(ExitCode::SUCCESS)
}

/// Makes a file readable only by its owner, or a directory with all its content. A missing one is no error.
fn keep_private(path: &Path) -> io::Result<()> {
    let mode = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => {
            for entry in fs::read_dir(path)? {
                keep_private(&entry?.path())?;
            }
            0o700
        }
        Ok(_) => 0o600,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e),
    };
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

fn moved(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

fn head(file: File) -> Result<Head> {
    let mut archive = tar::Archive::new(BufReader::new(file));
    let mut first = archive.entries()?.next().context("it is empty")??;
    if first.path()? != Path::new(HEAD) {
        bail!("it does not begin with {HEAD}");
    }
    let mut text = String::new();
    first.by_ref().take(4_096).read_to_string(&mut text)?;
    let head: Head = serde_json::from_str(&text)?;
    if head.format > FORMAT {
        bail!(
            "it is of format {}, made by fn {}: use that version or a newer one",
            head.format,
            head.version
        );
    }
    Ok(head)
}

/// When the store in `data` was last written.
fn changed_unix_ms(data: &Path) -> Option<u64> {
    let changed = |name: &str| {
        let at = fs::metadata(data.join(name)).ok()?.modified().ok()?;
        u64::try_from(at.duration_since(UNIX_EPOCH).ok()?.as_millis()).ok()
    };
    [DATABASE, "scheduler.db-wal"].into_iter().filter_map(changed).max()
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the async runtime could not be started")
}

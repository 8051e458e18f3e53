//! Replaces several files of a directory as if atomically.
//!
//! ```text
//! NAME.new written, synced ─► note ─► NAME linked as NAME.bak ─► NAME.new renamed to NAME ─► note removed
//!         │ a crash: nothing changed      └──── a crash: the next command here goes on from the note ────┘
//! ```

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, fchown};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::{InterchangeError, io_at};
use crate::manifest::is_file_name;

const NOTE: &str = "rekindle-replace.json";
const NEW: &str = "new";
const BACKUP: &str = "bak";

/// The files being replaced. Written once all new files are complete.
#[derive(Serialize, Deserialize)]
struct ReplacementNote {
    files: Vec<String>,
    backups: bool,
}

/// New files, written beside those that they will replace. Without [`Replacement::commit`], they are removed on drop.
pub(super) struct Replacement {
    dir: PathBuf,
    staged: Vec<String>,
}

fn beside(dir: &Path, name: &str, ending: &str) -> PathBuf {
    dir.join(format!("{name}.{ending}"))
}

impl Replacement {
    /// Finishes or cleans up what a killed command left in `dir`, then begins.
    pub(super) fn begin(dir: &Path) -> Result<Self, InterchangeError> {
        resume(dir)?;
        for entry in fs::read_dir(dir).map_err(io_at("read", dir))? {
            let path = entry.map_err(io_at("read", dir))?.path();
            if path.to_string_lossy().ends_with(".img.new") {
                fs::remove_file(&path).map_err(io_at("remove", &path))?;
            }
        }
        Ok(Self {
            dir: dir.to_owned(),
            staged: Vec::new(),
        })
    }

    /// An empty file that will replace `name`, with the same owner and mode.
    pub(super) fn stage(&mut self, name: &str) -> Result<File, InterchangeError> {
        let (old, new) = (self.dir.join(name), beside(&self.dir, name, NEW));
        let meta = fs::metadata(&old).map_err(io_at("read", &old))?;
        let file = OpenOptions::new().write(true).create_new(true).open(&new);
        let file = file.map_err(io_at("create", &new))?;
        self.staged.push(name.to_owned());
        file.set_permissions(meta.permissions())
            .map_err(io_at("set the mode of", &new))?;
        match fchown(&file, Some(meta.uid()), Some(meta.gid())) {
            Err(e) if e.kind() != io::ErrorKind::PermissionDenied => Err(e).map_err(io_at("set the owner of", &new)),
            _ => Ok(file),
        }
    }

    /// Replaces all the files. With `backups`, the old files are kept beside the new ones.
    pub(super) fn commit(mut self, backups: bool) -> Result<(), InterchangeError> {
        for name in &self.staged {
            let new = beside(&self.dir, name, NEW);
            File::open(&new)
                .and_then(|f| f.sync_all())
                .map_err(io_at("sync", &new))?;
            let backup = beside(&self.dir, name, BACKUP);
            if backups && fs::symlink_metadata(&backup).is_ok() {
                return Err(InterchangeError::Backup(backup));
            }
        }
        let note = ReplacementNote {
            files: self.staged.clone(),
            backups,
        };
        let path = self.dir.join(NOTE);
        let draft = beside(&self.dir, NOTE, NEW);
        let json = serde_json::to_vec(&note).map_err(|e| io_at("write", &path)(e.into()))?;
        fs::write(&draft, json).map_err(io_at("write", &draft))?;
        File::open(&draft)
            .and_then(|f| f.sync_all())
            .map_err(io_at("sync", &draft))?;
        fs::rename(&draft, &path).map_err(io_at("write", &path))?;
        // From here on the replacement happens, by this process or a later one.
        self.staged.clear();
        sync(&self.dir)?;
        finish(&self.dir, &note)
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        for name in &self.staged {
            let new = beside(&self.dir, name, NEW);
            if let Err(error) = fs::remove_file(&new) {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(path = %new.display(), error, "unfinished file stays");
            }
        }
    }
}

/// Continues where a killed command stopped after writing its note.
pub(super) fn resume(dir: &Path) -> Result<(), InterchangeError> {
    let path = dir.join(NOTE);
    let json = match fs::read(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        read => read.map_err(io_at("read", &path))?,
    };
    let note: ReplacementNote = serde_json::from_slice(&json).map_err(|_| InterchangeError::Note(path.clone()))?;
    if !note.files.iter().all(|name| is_file_name(name)) {
        return Err(InterchangeError::Note(path));
    }
    finish(dir, &note)
}

fn finish(dir: &Path, note: &ReplacementNote) -> Result<(), InterchangeError> {
    for name in &note.files {
        let (old, new) = (dir.join(name), beside(dir, name, NEW));
        if fs::symlink_metadata(&new).is_err() {
            continue;
        }
        let backup = beside(dir, name, BACKUP);
        if note.backups && fs::symlink_metadata(&backup).is_err() {
            fs::hard_link(&old, &backup).map_err(io_at("keep", &backup))?;
        }
        fs::rename(&new, &old).map_err(io_at("replace", &old))?;
    }
    sync(dir)?;
    let path = dir.join(NOTE);
    fs::remove_file(&path).map_err(io_at("remove", &path))?;
    sync(dir)
}

fn sync(dir: &Path) -> Result<(), InterchangeError> {
    File::open(dir).and_then(|d| d.sync_all()).map_err(io_at("sync", dir))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn names(dir: &Path) -> Vec<(String, String)> {
        let mut all: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|e| e.unwrap().path())
            .map(|p| {
                let name = p.file_name().unwrap().to_string_lossy().into_owned();
                (name, fs::read_to_string(p).unwrap())
            })
            .collect();
        all.sort();
        all
    }

    fn old() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a.img", "b.img"] {
            fs::write(dir.path().join(name), format!("old {name}")).unwrap();
        }
        dir
    }

    fn stage(dir: &Path) -> Replacement {
        let mut replacement = Replacement::begin(dir).unwrap();
        for name in ["a.img", "b.img"] {
            let mut file = replacement.stage(name).unwrap();
            file.write_all(format!("new {name}").as_bytes()).unwrap();
        }
        replacement
    }

    /// Whatever step a crash follows, the next command finds all old files or makes all new.
    #[test]
    fn a_crash_after_any_step_leaves_all_old_or_all_new() {
        let whole = old();
        stage(whole.path()).commit(true).unwrap();
        let done = names(whole.path());
        assert_eq!(done.len(), 4);
        assert_eq!(done[0], ("a.img".to_owned(), "new a.img".to_owned()));
        assert_eq!(done[1], ("a.img.bak".to_owned(), "old a.img".to_owned()));

        let before = old();
        std::mem::forget(stage(before.path()));
        drop(Replacement::begin(before.path()).unwrap());
        assert_eq!(names(before.path()), names(old().path()));

        for steps in 0..=4 {
            let dir = old();
            let path = dir.path();
            std::mem::forget(stage(path));
            let note = ReplacementNote {
                files: vec!["a.img".to_owned(), "b.img".to_owned()],
                backups: true,
            };
            fs::write(path.join(NOTE), serde_json::to_vec(&note).unwrap()).unwrap();
            for step in 0..steps {
                let name = &note.files[step / 2];
                if step % 2 == 0 {
                    fs::hard_link(path.join(name), beside(path, name, BACKUP)).unwrap();
                } else {
                    fs::rename(beside(path, name, NEW), path.join(name)).unwrap();
                }
            }
            drop(Replacement::begin(path).unwrap());
            assert_eq!(names(path), done, "after {steps} steps");
        }
    }

    #[test]
    fn a_backup_that_is_there_is_not_overwritten_and_a_foreign_note_not_believed() {
        let dir = old();
        fs::write(dir.path().join("b.img.bak"), "dear").unwrap();
        let error = stage(dir.path()).commit(true).unwrap_err();
        assert!(error.to_string().contains("b.img.bak is there already"), "{error}");
        assert_eq!(names(dir.path()).len(), 3);
        fs::write(dir.path().join(NOTE), r#"{"files":["../x"],"backups":false}"#).unwrap();
        assert!(matches!(resume(dir.path()), Err(InterchangeError::Note(_))));
    }
}

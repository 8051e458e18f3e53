//! What only this platform may know: the admin key, and the secret between its parts. Each is made once, as a file that
//! only root can read, and is never logged.

use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use rekindle_envelope::MasterKey;

use super::key_command;
use super::layout::make_private;
use crate::args::SealingArgs;

/// Default name of the master key's file below the data directory.
pub(crate) const MASTER_KEY: &str = "master.key";
/// Anything shorter is not a secret.
const LENGTH_MIN: usize = 16;

/// The secrets of one platform.
#[derive(Clone)]
pub(crate) struct Secrets {
    /// Its holder may deploy and delete.
    pub(crate) admin_key: String,
    /// File of the admin key.
    pub(crate) admin_key_file: PathBuf,
    /// Whether it was made just now.
    pub(crate) admin_key_is_new: bool,
    /// Proves one part of the platform to another.
    pub(crate) cluster_token: String,
    /// Encrypts secrets in the scheduler's database.
    pub(crate) master_key: MasterKey,
}

impl Secrets {
    /// Reads the secrets in `data`, and makes missing ones.
    pub(crate) fn in_directory(data: &Path, sealing: &SealingArgs) -> Result<Self> {
        let admin_key_file = data.join("admin.key");
        let admin_key_is_new = !admin_key_file.exists();
        let admin_key = admin_key(&admin_key_file)?;
        Ok(Self {
            admin_key,
            admin_key_file,
            admin_key_is_new,
            cluster_token: cluster_token(&data.join("cluster.token"))?,
            master_key: master_key(data, sealing)?,
        })
    }
}

/// Reads a secret that must exist.
pub(crate) fn read(path: &Path) -> Result<String> {
    let text = fs::read_to_string(path).with_context(|| format!("{}: the secret cannot be read", path.display()))?;
    let text = text.trim();
    if text.len() < LENGTH_MIN {
        bail!(
            "{}: holds no secret: remove it, and the next start makes one",
            path.display()
        );
    }
    Ok(text.to_owned())
}

/// Stores a received secret, unless there is one.
pub(crate) fn keep(path: &Path, secret: &str) -> Result<()> {
    if path.exists() {
        return Ok(());
    }
    make_private(path.parent().map(Path::to_owned))?;
    write_private(path, &format!("{secret}\n"))
        .with_context(|| format!("{}: the secret cannot be kept", path.display()))
}

/// The key whose holder may deploy and delete; made if there is none.
pub(crate) fn admin_key(path: &Path) -> Result<String> {
    read_or_make(path, "rk_")
}

/// The secret between the parts of one platform; made if there is none.
pub(crate) fn cluster_token(path: &Path) -> Result<String> {
    read_or_make(path, "")
}

/// The key that encrypts secrets in the scheduler's database: what a command prints, or a file's content, which is made
/// if there is none.
pub(crate) fn master_key(data: &Path, sealing: &SealingArgs) -> Result<MasterKey> {
    if let Some(command) = &sealing.master_key_command {
        let key = key_command::printed(command)?.parse();
        return key.context("the command of --master-key-command prints no master key");
    }
    let path = sealing.master_key.clone().unwrap_or_else(|| data.join(MASTER_KEY));
    read_or_make(&path, "")?
        .parse()
        .with_context(|| format!("{}: holds no master key", path.display()))
}

/// Reads the secret, or makes it from 32 random bytes. The loser of a race reads what the winner made.
fn read_or_make(path: &Path, prefix: &str) -> Result<String> {
    if path.exists() {
        return read(path);
    }
    make_private(path.parent().map(Path::to_owned))?;
    let bytes: [u8; 32] = rand::random();
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    let new = path.with_extension(format!("new-{}", std::process::id()));
    let written = write_private(&new, &format!("{prefix}{hex}\n")).and_then(|()| match fs::hard_link(&new, path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        _ => Ok(()),
    });
    let removed = fs::remove_file(&new);
    written
        .and(removed)
        .with_context(|| format!("{}: the secret cannot be made", path.display()))?;
    read(path)
}

fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    // The umask limits the mode at creation, but an inherited ACL must not widen it.
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_made_once_and_only_root_reads_them() {
        let dir = tempfile::tempdir().unwrap();
        let first = Secrets::in_directory(dir.path(), &SealingArgs::default()).unwrap();
        let second = Secrets::in_directory(dir.path(), &SealingArgs::default()).unwrap();
        assert!(first.admin_key_is_new && !second.admin_key_is_new);
        assert_eq!(first.admin_key, second.admin_key);
        assert_eq!(first.master_key.id(), second.master_key.id());
        assert_eq!(first.admin_key.len(), 3 + 64);
        for entry in fs::read_dir(dir.path()).unwrap() {
            let meta = entry.unwrap().metadata().unwrap();
            assert_eq!(meta.permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn the_master_key_may_lie_elsewhere_and_is_not_taken_from_a_short_text() {
        let dir = tempfile::tempdir().unwrap();
        let elsewhere = SealingArgs {
            master_key: Some(dir.path().join("elsewhere")),
            master_key_command: None,
        };
        let made = master_key(dir.path(), &elsewhere).unwrap();
        assert!(!dir.path().join(MASTER_KEY).exists());
        fs::copy(dir.path().join("elsewhere"), dir.path().join(MASTER_KEY)).unwrap();
        let copied = master_key(dir.path(), &SealingArgs::default()).unwrap();
        assert_eq!(made.id(), copied.id());
        let command = |command: String| SealingArgs {
            master_key: None,
            master_key_command: Some(command),
        };
        let file = dir.path().join("elsewhere");
        let printed = master_key(dir.path(), &command(format!("cat {}", file.display())));
        assert_eq!(printed.unwrap().id(), made.id());
        let error = master_key(dir.path(), &command("echo short".to_owned())).unwrap_err();
        assert!(format!("{error:#}").contains("at least 32"), "{error:#}");
        fs::write(dir.path().join(MASTER_KEY), "sixteen-letters-").unwrap();
        let error = master_key(dir.path(), &SealingArgs::default()).unwrap_err();
        assert!(format!("{error:#}").contains("at least 32"), "{error:#}");
    }

    #[test]
    fn an_empty_secret_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("admin.key"), "\n").unwrap();
        let error = Secrets::in_directory(dir.path(), &SealingArgs::default())
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains("holds no secret"), "{error}");
    }
}

//! Secrets in files that only root can read.

use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use super::layout::make_private;

/// Anything shorter is not a secret.
const LENGTH_MIN: usize = 16;

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

/// Reads the secret, or makes it from 32 random bytes. The loser of a race reads what the winner made.
pub(super) fn read_or_make(path: &Path, prefix: &str) -> Result<String> {
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

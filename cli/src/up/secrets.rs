//! What only this platform may know: the admin key, and the secret between its parts. Each is made once, as a file that
//! only root can read, and is never logged.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::master_key::MasterKeySource;
use super::secret_file::read_or_make;
use crate::args::SealingArgs;

/// The secrets of one platform.
#[derive(Clone)]
pub(crate) struct Secrets {
    /// Its holder may deploy and delete.
    pub(crate) admin_key: String,
    pub(crate) admin_key_file: PathBuf,
    /// Whether it was made just now.
    pub(crate) admin_key_is_new: bool,
    /// Proves one part of the platform to another.
    pub(crate) cluster_token: String,
    /// Encrypts secrets in the scheduler's database.
    pub(crate) master_key: MasterKeySource,
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
            master_key: MasterKeySource::find(data, sealing)?,
        })
    }
}

/// The key whose holder may deploy and delete; made if there is none.
pub(crate) fn admin_key(path: &Path) -> Result<String> {
    read_or_make(path, "rk_")
}

/// The secret between the parts of one platform; made if there is none.
pub(crate) fn cluster_token(path: &Path) -> Result<String> {
    read_or_make(path, "")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        sealing: SealingArgs,
    }

    fn sealing() -> SealingArgs {
        Line::parse_from(["fn"]).sealing
    }

    #[test]
    fn secrets_are_made_once_and_only_root_reads_them() {
        let dir = tempfile::tempdir().unwrap();
        let first = Secrets::in_directory(dir.path(), &sealing()).unwrap();
        let second = Secrets::in_directory(dir.path(), &sealing()).unwrap();
        assert!(first.admin_key_is_new && !second.admin_key_is_new);
        assert_eq!(first.admin_key, second.admin_key);
        let id = |secrets: &Secrets| match &secrets.master_key {
            MasterKeySource::AtHand(key) => key.id(),
            MasterKeySource::Wrapped { .. } => panic!("not at hand"),
        };
        assert_eq!(id(&first), id(&second));
        assert_eq!(first.admin_key.len(), 3 + 64);
        for entry in fs::read_dir(dir.path()).unwrap() {
            let meta = entry.unwrap().metadata().unwrap();
            assert_eq!(meta.permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn an_empty_secret_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("admin.key"), "\n").unwrap();
        let error = Secrets::in_directory(dir.path(), &sealing()).err().unwrap().to_string();
        assert!(error.contains("holds no secret"), "{error}");
    }
}

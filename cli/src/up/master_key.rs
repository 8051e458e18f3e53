//! The key that encrypts secrets in the scheduler's database: at hand in a file or from a command, or wrapped in that
//! database and unwrapped by a key service.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use rekindle_envelope::MasterKey;
use rekindle_scheduler::{Database, unwrapped_master_key};

use super::{key_command, kms, secret_file};
use crate::args::SealingArgs;

/// Default name of the key's file below the data directory.
pub(crate) const MASTER_KEY: &str = "master.key";

/// A master key, or what it takes to unwrap it.
#[derive(Debug, Clone)]
pub(crate) enum MasterKeySource {
    /// It was read.
    AtHand(MasterKey),
    /// A key service unwraps it.
    Wrapped {
        /// The service's key.
        by: String,
        /// The cluster that it is wrapped for.
        cluster: String,
        /// The file that the key may have been kept in before.
        file: PathBuf,
    },
}

impl MasterKeySource {
    /// Reads the key from its command or its file, which is made if there is none, unless a key service has it. Blocks.
    pub(crate) fn find(data: &Path, sealing: &SealingArgs) -> Result<Self> {
        if let Some(command) = &sealing.master_key_command {
            let key = key_command::printed(command)?.parse();
            let key = key.context("the command of --master-key-command prints no master key")?;
            return Ok(Self::AtHand(key));
        }
        let file = sealing.master_key.clone().unwrap_or_else(|| data.join(MASTER_KEY));
        if let Some(by) = &sealing.master_key_kms {
            return Ok(Self::Wrapped {
                by: by.clone(),
                cluster: sealing.master_key_cluster.clone(),
                file,
            });
        }
        parse(&secret_file::read_or_make(&file, "")?, &file).map(Self::AtHand)
    }

    pub(crate) async fn open(&self, database: &Database) -> Result<MasterKey> {
        let (by, cluster, file) = match self {
            Self::AtHand(key) => return Ok(key.clone()),
            Self::Wrapped { by, cluster, file } => (by, cluster, file),
        };
        let before = match file.exists() {
            true => Some(parse(&secret_file::read(file)?, file)?),
            false => None,
        };
        let service = kms::service(by, cluster).await?;
        let key = unwrapped_master_key(database, &*service, before.as_ref()).await?;
        if before.is_some_and(|before| before.id() == key.id()) {
            tracing::warn!(
                target: super::LOG,
                file = %file.display(),
                "the master key is still in its file, where nothing needs it any more: remove the file"
            );
        }
        Ok(key)
    }
}

fn parse(text: &str, file: &Path) -> Result<MasterKey> {
    text.parse()
        .with_context(|| format!("{}: holds no master key", file.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn sealing() -> SealingArgs {
        SealingArgs {
            master_key: None,
            master_key_command: None,
            master_key_kms: None,
            master_key_cluster: "blue".to_owned(),
        }
    }

    fn found(data: &Path, sealing: &SealingArgs) -> Result<MasterKey> {
        match MasterKeySource::find(data, sealing)? {
            MasterKeySource::AtHand(key) => Ok(key),
            MasterKeySource::Wrapped { .. } => panic!("not at hand"),
        }
    }

    #[test]
    fn it_may_lie_elsewhere_and_is_not_taken_from_a_short_text() {
        let dir = tempfile::tempdir().unwrap();
        let elsewhere = SealingArgs {
            master_key: Some(dir.path().join("elsewhere")),
            ..sealing()
        };
        let made = found(dir.path(), &elsewhere).unwrap();
        assert!(!dir.path().join(MASTER_KEY).exists());
        fs::copy(dir.path().join("elsewhere"), dir.path().join(MASTER_KEY)).unwrap();
        let copied = found(dir.path(), &sealing()).unwrap();
        assert_eq!(made.id(), copied.id());
        let command = |command: String| SealingArgs {
            master_key_command: Some(command),
            ..sealing()
        };
        let file = dir.path().join("elsewhere");
        let printed = found(dir.path(), &command(format!("cat {}", file.display())));
        assert_eq!(printed.unwrap().id(), made.id());
        let error = found(dir.path(), &command("echo short".to_owned())).unwrap_err();
        assert!(format!("{error:#}").contains("at least 32"), "{error:#}");
        fs::write(dir.path().join(MASTER_KEY), "sixteen-letters-").unwrap();
        let error = found(dir.path(), &sealing()).unwrap_err();
        assert!(format!("{error:#}").contains("at least 32"), "{error:#}");
    }

    #[test]
    fn no_file_is_made_where_a_key_service_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let kms = SealingArgs {
            master_key_kms: Some("alias/rekindle".to_owned()),
            ..sealing()
        };
        let source = MasterKeySource::find(dir.path(), &kms).unwrap();
        assert!(matches!(source, MasterKeySource::Wrapped { .. }));
        assert!(!dir.path().join(MASTER_KEY).exists());
    }
}

//! The secrets of the function in a sandbox.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::sync::atomic::Ordering;

use nix::sys::memfd::{MFdFlags, memfd_create};
use rekindle_init::protocol::Request;
use rekindle_wire::secret::{self, Secret};

use super::{ControlError, Sandbox, SandboxError};

impl Sandbox {
    /// Puts these secrets in the place of all others.
    ///
    /// # Errors
    /// Returns an error when the sandbox has no place for them.
    pub async fn set_secrets(&self, secrets: &[Secret]) -> Result<(), SandboxError> {
        let what = "give the function its secrets";
        let failed = |e: io::Error| SandboxError::Control(what, ControlError::Send(e));
        // Values are too long for a message, and are in memory alone here too.
        let mut values = File::from(memfd_create("secrets", MFdFlags::MFD_CLOEXEC).map_err(|e| failed(e.into()))?);
        for secret in secrets {
            values.write_all(secret.value.bytes()).map_err(failed)?;
        }
        let files = secrets.iter().map(|secret| {
            let size = secret.value.bytes().len() as u64;
            (secret.name.to_string(), size)
        });
        let request = Request::SetSecrets(files.collect());
        self.ask(what, request, &[values.as_fd()]).await?;
        let versions = secrets.iter().map(|secret| secret.version);
        self.secrets_revision
            .store(secret::revision(versions), Ordering::Relaxed);
        Ok(())
    }

    /// Returns the revision of its secrets; 0 without any.
    pub fn secrets_revision(&self) -> u64 {
        self.secrets_revision.load(Ordering::Relaxed)
    }
}

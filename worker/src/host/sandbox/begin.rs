//! Restores that begin in furnished sandboxes before an instance takes them.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use futures::future::BoxFuture;

use super::{Hollow, Sandbox};

/// A restore that has begun. Dropping it ends what it has made.
pub(crate) type BegunRestore = Box<dyn Any + Send>;

/// Why a restore did not begin.
pub(crate) type BeginError = Box<dyn std::error::Error + Send + Sync>;

/// Begins restores of a snapshot.
pub(crate) trait BeginRestore: Send + Sync {
    /// Returns whether a restore should begin ahead now.
    ///
    /// # Errors
    /// Returns an error when that cannot be found out.
    fn is_worthwhile(&self) -> Result<bool, BeginError>;

    /// Resolves once nobody will ask for a restore any more.
    fn over(&self) -> BoxFuture<'static, ()>;

    /// Begins a restore by the hollow process of a furnished sandbox. `outputs` are the function's ends of its outputs.
    /// If it fails, the sandbox is of no use.
    fn begin<'a>(
        &'a self,
        sandbox: &'a Arc<Sandbox>,
        hollow: Hollow,
        outputs: [OwnedFd; 2],
    ) -> BoxFuture<'a, Result<BegunRestore, BeginError>>;
}

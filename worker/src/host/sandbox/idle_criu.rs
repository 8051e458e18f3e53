//! The CRIU that waits in an empty sandbox: for any order, or, if everything it asks the kernel for is known,
//! prestarted for its first image.

use std::time::Duration;

use rekindle_criu::{AwaitedImages, Session};
use rekindle_pager::Ancestor;

/// How long CRIU may take to end when nothing is asked of it.
const DISMISS_LIMIT: Duration = Duration::from_secs(5);

/// A CRIU that waits.
#[derive(Debug)]
pub struct IdleCriu {
    /// The session to control it.
    pub session: Session,
    /// Its memory, from which a pager gets the memory of what it restores, if the kernel allows that. Must be dropped
    /// if no pager uses it.
    pub ancestor: Option<Ancestor>,
    /// The images that it waits for, if it is prestarted.
    pub prestarted: Option<AwaitedImages>,
}

impl IdleCriu {
    /// Dismisses it in the background. Nobody waits for its end.
    pub fn let_go(self) {
        tokio::task::spawn_blocking(move || self.dismiss());
    }

    /// Blocks until one that is not prestarted has replied.
    fn dismiss(self) {
        // It no longer forks for anybody.
        drop(self.ancestor);
        match self.prestarted {
            // It then finds its inventory empty.
            Some(images) => drop(images),
            None => {
                if let Err(e) = self.session.dismiss(DISMISS_LIMIT) {
                    tracing::debug!(error = &e as &dyn std::error::Error, "criu ended in another way");
                }
            }
        }
    }
}

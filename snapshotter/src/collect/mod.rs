//! Collection: what nothing refers to is removed from the store, while others publish. The protocol is decision 7.

mod names;
mod objects;
mod publication;

use std::time::Duration;

pub use names::NamesError;
pub use objects::Objects;
pub use publication::{Owner, PUBLICATION_LIMIT, Publication, PublicationError, forget};

/// A publisher's notes, or a collection's list, older than this by the store's own clock are those of a dead one.
pub const INTENT_LIFE: Duration = Duration::from_secs(24 * 3600);

//! A deploy on this host: files are fetched or built, a function is prepared, and its first restore is rehearsed.

pub mod build;
pub mod layers;
pub mod prepare;
pub(crate) mod rehearsal;
pub mod renewal;
pub mod runtime_snapshot;
pub(crate) mod unlisted;
pub(crate) mod warm_up;

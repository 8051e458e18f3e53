//! A deploy on this host: files are fetched or built, a function is prepared, and its first restore is rehearsed.

pub mod build;
pub mod builder;
pub mod prepare;
pub mod rehearsal;
pub(crate) mod unique;
pub(crate) mod unlisted;
pub(crate) mod warm_up;

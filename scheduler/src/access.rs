//! Keys of the API and namespaces: recorded first, then applied in memory, then told to gateways. `table` holds the
//! keys.

pub(crate) mod keys;
pub(crate) mod namespaces;
pub(crate) mod table;

//! Keys of the API, rules of access, and namespaces: recorded first, then applied in memory, then told to gateways.
//! `table` holds the keys, `rule_table` the rules.

mod grants;
pub(crate) mod keys;
pub(crate) mod namespaces;
mod rule_table;
pub(crate) mod rules;
pub(crate) mod table;

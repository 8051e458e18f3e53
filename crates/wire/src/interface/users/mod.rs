//! What users ask of the platform: the admin API under `/v1/`, invocations and health. The gateway answers what is in
//! [`GATEWAY`] itself, and passes what is in [`FUNCTIONS`] and [`ADMIN`] on to the scheduler. The OpenAPI document is
//! made of [`described()`].

#[macro_use]
mod described;
mod access;
mod admin;
mod functions;
mod gateway;

pub use access::{Needed, Touched, check_query, needed, touched};
pub use admin::*;
pub use described::{Access, Described, Field, Form, Message, Place, Reach, Schemas, one};
pub use functions::*;
pub use gateway::*;

/// What namespaces have: paths begin with this in the default one.
const NAMESPACED: [&str; 6] = [
    "/v1/functions",
    "/v1/secrets",
    "/v1/schedules",
    "/v1/sources",
    "/v1/quota",
    "/v1/usage",
];

/// The path of an operation in any namespace, besides its short form for the default one.
pub fn in_namespace(path: &str) -> Option<String> {
    NAMESPACED.iter().find(|start| path.starts_with(**start))?;
    let rest = path.strip_prefix("/v1")?;
    Some(format!("/v1/namespaces/{{namespace}}{rest}"))
}

/// Every operation, with its description.
pub fn described() -> impl Iterator<Item = &'static Described> {
    passed_on().chain(DESCRIBED_GATEWAY)
}

/// Every operation that the scheduler serves, with its description.
fn passed_on() -> impl Iterator<Item = &'static Described> {
    DESCRIBED_FUNCTIONS.iter().chain(DESCRIBED_ADMIN)
}

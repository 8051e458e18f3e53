//! Who may speak to whom in a platform of several hosts: a certificate authority of the cluster's own, certificates that name a role, tokens with which
//! a host joins, and connections that both ends prove themselves on (TLS 1.3). The one place that touches TLS between roles.
//!
//! ```text
//!   fn cluster init     authority: key and certificate, on the scheduler's host
//!   fn cluster token    token: a secret and the authority's fingerprint; its digest stays with the authority
//!   fn worker --join    member: makes a key, asks with it and the token for a certificate of its role; the key never leaves the host
//!   between roles       accept, connect: each end shows its certificate, and looks at the other's role
//!   later               member: a new certificate when two thirds of the old one's life are over
//!   fn cluster revoke   revoked: the scheduler keeps who is not believed any more; all members hear it, and close what
//!                       they have with it
//! ```
//!
//! A role is a name in the certificate, `NAME.ROLE.rekindle` (and `ROLE.rekindle`), which is what the other end asks for instead of an
//! address: so an address says nothing about who answers there. Without an authority all of this is left out, and roles speak plain HTTP.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test ends at the first surprise"))]

mod accept;
mod authority;
mod connect;
mod files;
mod issue;
mod join;
mod member;
mod peer;
mod public;
mod revoked;
#[cfg(test)]
mod tests;
mod token;

pub use accept::{Caller, Connection, Listener, inside};
pub use authority::{Authority, AuthorityError};
pub use connect::{CallError, Connector, Transport, connector};
pub use issue::Issuing;
pub use join::{JoinAnswer, JoinError, JoinRequest, RenewRequest, join};
pub use member::{Member, MemberError};
pub use peer::{Peer, Role};
pub use public::PublicError;
pub use revoked::{Kept, Revocations, Revoked};
pub use rustls::Error as TlsError;
pub use token::{Token, TokenError, Tokens};

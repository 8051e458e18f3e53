//! Identities and trust in a platform of several hosts: the cluster's own certificate authority, certificates that name
//! a role, tokens with which hosts join, and mutually authenticated connections (TLS 1.3). The only place that uses TLS
//! between roles.
//!
//! ```text
//!   fn cluster init     authority: key and certificate, on the scheduler's host
//!   fn cluster token    token: a secret and the authority's fingerprint; its digest stays with the authority
//!   fn worker --join    member: creates a key, and requests a certificate of its role with it and the token;
//!                       the key never leaves the host
//!   between roles       accept, connect: each end presents its certificate, and checks the other's role
//!   later               member: a new certificate when two thirds of the old one's life have passed
//!   fn cluster revoke   revoked: the scheduler keeps the revoked members; all members learn of them, and close
//!                       their connections to them
//! ```
//!
//! A role is a name in the certificate, `NAME.ROLE.rekindle` (and `ROLE.rekindle`). The other end checks this name
//! instead of an address, so an address says nothing about who answers there. Without an authority, all of this is left
//! out, and roles speak plain HTTP.

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
mod transport;

pub use accept::{Caller, Connection, Listener, inside};
pub use authority::{Authority, AuthorityError};
pub use connect::{Connector, connector};
pub use issue::CertificateIssuer;
pub use join::{
    AwaitRevocations, Join, JoinError, JoinRequest, JoinResponse, MEMBERSHIP, RenewCertificate, RenewRequest, join,
};
pub use member::{Member, MemberError};
pub use peer::Peer;
pub use public::PublicError;
pub use rekindle_wire::interface::Role;
pub use revoked::{RevocableStream, Revocations, Revoked};
pub use rustls::Error as TlsError;
pub use token::{Token, TokenError, Tokens};
pub use transport::{CallError, Transport};

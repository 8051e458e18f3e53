//! The role and name in a certificate.

use std::fmt;

use rekindle_wire::interface::Role;
use rustls::pki_types::{CertificateDer, ServerName};
use serde::{Deserialize, Serialize};
use x509_parser::extensions::GeneralName;

/// Suffix of every name. No real host's name has it.
const SUFFIX: &str = "rekindle";

/// The name in every certificate of a role.
fn name_of(role: Role) -> String {
    format!("{role}.{SUFFIX}")
}

/// The same name in the form that a TLS client checks.
pub(crate) fn server_name_of(role: Role) -> ServerName<'static> {
    let name = match role {
        Role::Scheduler => "scheduler.rekindle",
        Role::Gateway => "gateway.rekindle",
        Role::Worker => "worker.rekindle",
    };
    ServerName::DnsName(rustls::pki_types::DnsName::try_from_str(name).unwrap_or_else(|_| unreachable!("{name}")))
}

/// The peer at the other end of a connection, according to a certificate of the cluster's authority.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Peer {
    /// Its role.
    pub role: Role,
    /// Its name within the role. For a worker, its id.
    pub name: String,
}

impl Peer {
    /// The names in its certificate.
    pub(crate) fn names(&self) -> Vec<String> {
        vec![format!("{}.{}", self.name, name_of(self.role)), name_of(self.role)]
    }

    /// Reads it from a verified certificate. `None` if the certificate names no role.
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
        let names = parsed.subject_alternative_name().ok()??;
        names.value.general_names.iter().find_map(|found| {
            let GeneralName::DNSName(dns) = found else { return None };
            let (name, rest) = dns.split_once('.')?;
            let role = rest.strip_suffix(SUFFIX)?.strip_suffix('.')?;
            Some(Self {
                role: role.parse().ok()?,
                name: name.to_owned(),
            })
        })
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.role, self.name)
    }
}

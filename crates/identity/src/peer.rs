//! The role and name in a certificate.

use std::fmt;
use std::str::FromStr;

use rustls::pki_types::{CertificateDer, ServerName};
use serde::{Deserialize, Serialize};
use x509_parser::extensions::GeneralName;

/// Suffix of every name. No real host's name has it.
const SUFFIX: &str = "rekindle";

/// A role in the platform.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Decides who does what, and signs certificates.
    Scheduler,
    /// Accepts requests.
    Gateway,
    /// Runs functions.
    Worker,
}

impl Role {
    /// The role as one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Scheduler => "scheduler",
            Self::Gateway => "gateway",
            Self::Worker => "worker",
        }
    }

    /// The name in every certificate of the role.
    pub(crate) fn name(self) -> String {
        format!("{}.{SUFFIX}", self.as_str())
    }

    /// The same name in the form that a TLS client checks.
    pub(crate) fn server_name(self) -> ServerName<'static> {
        let name = match self {
            Self::Scheduler => "scheduler.rekindle",
            Self::Gateway => "gateway.rekindle",
            Self::Worker => "worker.rekindle",
        };
        ServerName::DnsName(rustls::pki_types::DnsName::try_from_str(name).unwrap_or_else(|_| unreachable!("{name}")))
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Scheduler, Self::Gateway, Self::Worker]
            .into_iter()
            .find(|r| r.as_str() == text)
            .ok_or_else(|| format!("\"{text}\" is not a role: use worker or gateway"))
    }
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
        vec![format!("{}.{}", self.name, self.role.name()), self.role.name()]
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

//! Who may do what: the roles of callers, what a role reaches, the keys that carry both, and the rules that give both
//! to holders of tokens and certificates.

mod caller;
mod key;
mod rule;
mod scope;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use caller::{CLOCK_LEEWAY_S, Caller, Credential, GRANTS_OF_NAMESPACE_MAX, Grant};
pub use key::{KeyId, generate, id_in};
pub use rule::{Admitted, CLAIMS_MAX, CertificateName, ParseCertificateNameError, RULE_TEXT_MAX, RuleId, TokenHolder};
pub use scope::{ParseScopeError, Scope};

/// What a caller may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AccessRole {
    /// Everything, keys and the platform's hosts included.
    Admin,
    /// Deploys, releases, sets secrets, and does what invokers and readers do.
    Deployer,
    /// Invokes functions.
    Invoker,
    /// Reads descriptions, logs and numbers.
    Reader,
}

impl AccessRole {
    /// Every role.
    pub const ALL: [Self; 4] = [Self::Admin, Self::Deployer, Self::Invoker, Self::Reader];

    /// The role as one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Deployer => "deployer",
            Self::Invoker => "invoker",
            Self::Reader => "reader",
        }
    }

    /// Whether who has this role may do what `other` may. An invoker reads nothing, and a reader invokes nothing.
    pub fn includes(self, other: Self) -> bool {
        match self {
            Self::Admin => true,
            Self::Deployer => other != Self::Admin,
            Self::Invoker | Self::Reader => self == other,
        }
    }
}

impl fmt::Display for AccessRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for AccessRole {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|role| role.as_str() == text);
        found.ok_or_else(|| format!("\"{text}\" is no role: use admin, deployer, invoker or reader"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deployer_invokes_and_reads_and_neither_of_those_does_the_other() {
        use AccessRole::{Admin, Deployer, Invoker, Reader};
        let table = [
            (Admin, vec![Admin, Deployer, Invoker, Reader]),
            (Deployer, vec![Deployer, Invoker, Reader]),
            (Invoker, vec![Invoker]),
            (Reader, vec![Reader]),
        ];
        for (role, all) in table {
            let included: Vec<_> = AccessRole::ALL
                .into_iter()
                .filter(|other| role.includes(*other))
                .collect();
            assert_eq!(included, all, "{role}");
            assert_eq!(role.as_str().parse(), Ok(role));
        }
        assert!("Admin".parse::<AccessRole>().is_err());
    }
}

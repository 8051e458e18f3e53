//! Rules of access: what holders of tokens and certificates may do.

use std::collections::HashMap;

use parking_lot::RwLock;
use rekindle_wire::access::{Admitted, Caller, CertificateName, Grant};
use rekindle_wire::internal::KnownRule;
use rekindle_wire::{ApiError, ErrorCode};

use crate::tokens::Identity;

/// The rules that the scheduler tells of.
#[derive(Debug, Default)]
pub(crate) struct Rules(RwLock<Table>);

#[derive(Debug, Default)]
struct Table {
    /// Rules of tokens by their issuer, the oldest first.
    tokens: HashMap<String, Vec<KnownRule>>,
    certificates: HashMap<CertificateName, Vec<KnownRule>>,
}

impl Rules {
    pub(crate) fn apply(&self, rules: Vec<KnownRule>) {
        let mut table = Table::default();
        for rule in rules {
            let of = match &rule.admits {
                Admitted::Token(holder) => table.tokens.entry(holder.issuer.clone()).or_default(),
                Admitted::Certificate(name) => table.certificates.entry(name.clone()).or_default(),
            };
            of.push(rule);
        }
        *self.0.write() = table;
    }

    /// Whom a token identifies.
    ///
    /// # Errors
    /// `unauthorized` if no rule admits its holder.
    pub(crate) fn of_token(&self, identity: &Identity, now_unix_s: i64) -> Result<Caller, ApiError> {
        let Identity {
            issuer,
            subject,
            claims,
            expires_unix_s,
        } = identity;
        let table = self.0.read();
        let of_issuer = table.tokens.get(issuer).into_iter().flatten();
        let met = of_issuer.filter(|rule| match &rule.admits {
            Admitted::Token(holder) => holder.is(issuer, claims),
            Admitted::Certificate(_) => false,
        });
        let grants = grants(met, now_unix_s);
        if grants.is_empty() {
            return Err(ApiError::new(
                ErrorCode::Unauthorized,
                format!(
                    "the token is valid, but no rule lets {subject} of {issuer} in: an admin adds one with `fn access \
                     add --issuer {issuer} --claim {} --role ROLE`",
                    quoted(&format!("sub={subject}"))
                ),
            ));
        }
        let name = format!("oidc:{subject}@{issuer}");
        Ok(Caller::with_identity(name, Some(*expires_unix_s), grants))
    }

    /// Whom a certificate with these names identifies.
    ///
    /// # Errors
    /// `unauthorized` if no rule admits its holder.
    pub(crate) fn of_certificate(
        &self,
        names: &[CertificateName],
        expires_unix_s: i64,
        now_unix_s: i64,
    ) -> Result<Caller, ApiError> {
        let table = self.0.read();
        let of = |name: &&CertificateName| table.certificates.contains_key(*name);
        let met = names.iter().filter_map(|name| table.certificates.get(name)).flatten();
        let grants = grants(met, now_unix_s);
        match names.iter().find(of) {
            Some(name) if !grants.is_empty() => Ok(Caller::with_identity(
                format!("cert:{name}"),
                Some(expires_unix_s),
                grants,
            )),
            _ => {
                let shown: Vec<_> = names.iter().map(CertificateName::as_str).collect();
                Err(ApiError::new(
                    ErrorCode::Unauthorized,
                    match shown.first() {
                        Some(first) => format!(
                            "the certificate is valid, but no rule lets {} in: an admin adds one with `fn access add \
                             --certificate {} --role ROLE`",
                            shown.join(" or "),
                            quoted(first)
                        ),
                        None => "the certificate is valid, but has no name that a rule could let in: it needs a \
                                 common name, a DNS name or a URI"
                            .to_owned(),
                    },
                ))
            }
        }
    }
}

/// A text as a shell takes it: what a token or a certificate says must not become a command of whoever copies it.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

fn grants<'a>(met: impl Iterator<Item = &'a KnownRule>, now_unix_s: i64) -> Vec<Grant> {
    let lasting = met.filter(|rule| rule.expires_unix_s.is_none_or(|end| end > now_unix_s));
    let grants = lasting.map(|rule| Grant {
        rule: Some(rule.id.clone()),
        role: rule.role,
        scope: rule.scope.clone(),
    });
    grants.collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rekindle_wire::access::{AccessRole, RuleId, TokenHolder};
    use serde_json::json;

    use super::*;

    const ISSUER: &str = "https://id.example.com";

    fn rule(admits: Admitted, scope: &str, expires_unix_s: Option<i64>) -> KnownRule {
        KnownRule {
            id: RuleId::generate(),
            admits,
            role: AccessRole::Deployer,
            scope: scope.parse().unwrap(),
            expires_unix_s,
        }
    }

    fn of_group(group: &str) -> Admitted {
        Admitted::Token(TokenHolder {
            issuer: ISSUER.to_owned(),
            claims: BTreeMap::from([("groups".to_owned(), group.to_owned())]),
        })
    }

    #[test]
    fn a_token_has_the_roles_of_every_rule_that_it_meets_while_they_last() {
        let rules = Rules::default();
        let ada = Identity {
            issuer: ISSUER.to_owned(),
            subject: "ada".to_owned(),
            claims: json!({ "groups": ["dev", "ops"] }).as_object().unwrap().clone(),
            expires_unix_s: 99,
        };
        let refused = rules.of_token(&ada, 5).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Unauthorized);
        assert!(
            refused
                .message
                .contains("fn access add --issuer https://id.example.com --claim 'sub=ada'")
        );
        rules.apply(vec![
            rule(of_group("dev"), "*.team", None),
            rule(of_group("ops"), "*.other", Some(10)),
            rule(of_group("boss"), "*", None),
        ]);
        let caller = rules.of_token(&ada, 5).unwrap();
        assert_eq!(
            (caller.name(), caller.grants.len()),
            ("oidc:ada@https://id.example.com", 2)
        );
        assert_eq!(rules.of_token(&ada, 10).unwrap().grants.len(), 1);
        rules.apply(Vec::new());
        assert!(rules.of_token(&ada, 5).is_err());
    }

    #[test]
    fn a_certificate_is_let_in_by_any_of_its_names() {
        let rules = Rules::default();
        let names = ["CN=ci", "spiffe://example.org/ci"].map(|name| name.parse().unwrap());
        let refused = rules.of_certificate(&names, 99, 5).unwrap_err();
        assert!(refused.message.contains("--certificate 'CN=ci'"), "{refused}");
        assert!(
            rules
                .of_certificate(&[], 99, 5)
                .unwrap_err()
                .message
                .contains("common name")
        );
        rules.apply(vec![rule(Admitted::Certificate(names[1].clone()), "*.team", None)]);
        let caller = rules.of_certificate(&names, 99, 5).unwrap();
        assert_eq!(caller.name(), "cert:spiffe://example.org/ci");
    }
}

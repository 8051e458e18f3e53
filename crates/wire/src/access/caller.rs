//! Who calls, as the gateway tells the scheduler.

use std::collections::{BTreeMap, BTreeSet};

use http::{HeaderMap, HeaderValue};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{AccessRole, KeyId, RuleId, Scope};
use crate::error::{ApiError, ErrorCode};
use crate::headers::CALLER;
use crate::ids::Namespace;

/// The id of callers with the platform's own key.
const PLATFORM_KEY: &str = "admin";
/// What an identity's name begins with in the header.
const AS: &str = "as:";
/// Where an identity has no end.
const NO_END: &str = "-";
/// Maximum number of grants that a caller has at once: those of all rules that there can be. They go into a header.
const GRANTS_MAX: usize = 1_000;
/// Maximum number of bytes that they take there. Schedulers read headers of 128 KiB, with names of callers.
const GRANTS_BYTES_MAX: usize = 64 << 10;
/// Maximum number of grants that a caller has in one namespace. Whoever gives more there takes none elsewhere.
pub const GRANTS_OF_NAMESPACE_MAX: usize = 16;
/// How far clocks of issuers, gateways and schedulers may differ, in seconds.
pub const CLOCK_LEEWAY_S: u16 = 30;

/// A caller that was recognized.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// What it showed.
    pub credential: Credential,
    /// What it may do, and where.
    pub grants: Vec<Grant>,
}

/// What a caller showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    /// The platform's own key.
    Platform,
    /// A key of the API.
    Key(KeyId),
    /// A token or a certificate that rules admit.
    Identity {
        /// Who that is: `oidc:SUBJECT@ISSUER` or `cert:NAME`.
        name: String,
        /// When the token or the certificate ends, in seconds since the Unix epoch.
        expires_unix_s: Option<i64>,
    },
}

/// A role, and where its holder has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Grant {
    /// The rule that gives it. A key has its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<RuleId>,
    /// The role.
    pub role: AccessRole,
    /// Where: `*`, `*.NAMESPACE`, or a function's id.
    #[schema(value_type = String, example = "*.team")]
    pub scope: Scope,
}

impl Grant {
    fn has(&self, role: AccessRole, scope: &Scope) -> bool {
        self.role.includes(role) && self.scope.covers(scope)
    }

    /// How it is written into the header.
    fn written(&self) -> String {
        let rule = self.rule.as_ref().map_or(String::new(), |rule| format!(" {rule}"));
        format!("{rule} {} {}", self.role, self.scope)
    }
}

/// As many grants as can be written in so many bytes: wide ones first, and of as wide ones each namespace's in turn.
fn within(most: usize, grants: Vec<Grant>) -> Vec<Grant> {
    let bytes: usize = grants.iter().map(|grant| grant.written().len()).sum();
    if bytes <= most {
        return grants;
    }
    let mut counts: BTreeMap<Option<Namespace>, usize> = BTreeMap::new();
    let mut turns = Vec::new();
    for grant in grants {
        let turn = counts.entry(grant.scope.namespace()).or_default();
        *turn += 1;
        turns.push((grant.scope.breadth(), *turn, grant));
    }
    turns.sort_by_key(|(breadth, turn, _)| (*breadth, *turn));
    let mut left = most;
    let fits = |grant: &Grant| {
        let rest = left.checked_sub(grant.written().len());
        left = rest.unwrap_or(0);
        rest.is_some()
    };
    turns.into_iter().map(|(.., grant)| grant).take_while(fits).collect()
}

impl Caller {
    /// The holder of the platform's own key.
    pub fn platform() -> Self {
        let (role, scope) = (AccessRole::Admin, Scope::Platform);
        Self {
            credential: Credential::Platform,
            grants: vec![Grant {
                rule: None,
                role,
                scope,
            }],
        }
    }

    /// The holder of a key.
    pub fn with_key(id: KeyId, role: AccessRole, scope: Scope) -> Self {
        Self {
            credential: Credential::Key(id),
            grants: vec![Grant {
                rule: None,
                role,
                scope,
            }],
        }
    }

    /// A caller that rules admit. What another grant includes is left out, and so is what its namespace has no room
    /// for: of as wide ones the newest.
    pub fn with_identity(name: String, expires_unix_s: Option<i64>, mut grants: Vec<Grant>) -> Self {
        // Wide ones first, so that those for single functions do not take their room.
        grants.sort_by_key(|grant| grant.scope.breadth());
        let mut kept: Vec<Grant> = Vec::new();
        let mut counts: BTreeMap<Option<Namespace>, usize> = BTreeMap::new();
        for grant in grants {
            if kept.iter().any(|other| other.has(grant.role, &grant.scope)) {
                continue;
            }
            let count = counts.entry(grant.scope.namespace()).or_default();
            let replaced = kept.len();
            kept.retain(|other| !(grant.scope == other.scope && grant.role.includes(other.role)));
            *count -= replaced - kept.len();
            if *count < GRANTS_OF_NAMESPACE_MAX && kept.len() < GRANTS_MAX {
                *count += 1;
                kept.push(grant);
            }
        }
        Self {
            credential: Credential::Identity { name, expires_unix_s },
            grants: within(GRANTS_BYTES_MAX, kept),
        }
    }

    /// Whether it showed the platform's own key.
    pub fn is_platform(&self) -> bool {
        self.credential == Credential::Platform
    }

    /// Whether it showed a token or a certificate.
    pub fn is_identity(&self) -> bool {
        matches!(self.credential, Credential::Identity { .. })
    }

    /// The caller's name in logs and as an owner.
    pub fn name(&self) -> &str {
        match &self.credential {
            Credential::Platform => PLATFORM_KEY,
            Credential::Key(id) => id.as_str(),
            Credential::Identity { name, .. } => name,
        }
    }

    /// The grants that give the role in all of the scope.
    pub fn giving(&self, role: AccessRole, scope: &Scope) -> impl Iterator<Item = &Grant> {
        self.grants.iter().filter(move |grant| grant.has(role, scope))
    }

    /// Whether the caller has the role in all of the scope.
    pub fn has(&self, role: AccessRole, scope: &Scope) -> bool {
        self.giving(role, scope).next().is_some()
    }

    /// Whether the caller may do something in the namespace.
    pub fn meets(&self, namespace: &Namespace) -> bool {
        self.grants.iter().any(|grant| grant.scope.meets(namespace))
    }

    /// The only namespace in which it may do something.
    pub fn namespace(&self) -> Option<Namespace> {
        let mut all = self.grants.iter().map(|grant| grant.scope.namespace());
        let first = all.next()??;
        all.all(|other| other.as_ref() == Some(&first)).then_some(first)
    }

    /// The widest scope in which the caller has the role; of several that are as wide, the first.
    pub fn widest(&self, role: AccessRole) -> Option<&Scope> {
        let of_role = self.grants.iter().filter(|grant| grant.role.includes(role));
        of_role.map(|grant| &grant.scope).min_by_key(|scope| scope.breadth())
    }

    /// The namespaces in which the caller has the role throughout. `None` if it has it in the whole platform.
    pub fn namespaces(&self, role: AccessRole) -> Option<BTreeSet<Namespace>> {
        let of_role = self.grants.iter().filter(|grant| grant.role.includes(role));
        of_role
            .filter_map(|grant| match &grant.scope {
                Scope::Platform => Some(None),
                Scope::Namespace(namespace) => Some(Some(namespace.clone())),
                Scope::Function(_) => None,
            })
            .collect()
    }

    /// Refuses a caller that has not the role in all of the scope.
    ///
    /// # Errors
    /// `forbidden`, with the missing role and how to get it.
    pub fn check(&self, role: AccessRole, scope: &Scope) -> Result<(), ApiError> {
        match self.has(role, scope) {
            true => Ok(()),
            false => Err(self.refused(role, scope)),
        }
    }

    fn refused(&self, role: AccessRole, scope: &Scope) -> ApiError {
        let options = match scope {
            Scope::Platform => "--all-namespaces".to_owned(),
            Scope::Namespace(namespace) => format!("-n {namespace}"),
            Scope::Function(function) => format!("-n {} --function {}", function.namespace(), function.name()),
        };
        let has = self
            .grants
            .iter()
            .map(|grant| format!("the role {} for {}", grant.role, grant.scope.in_words()));
        let all = has.collect::<Vec<_>>();
        let mut has = all.join(", ");
        let meets = |grant: &&Grant| scope.namespace().is_some_and(|namespace| grant.scope.meets(&namespace));
        if self.is_identity() && self.grants.iter().filter(meets).count() >= GRANTS_OF_NAMESPACE_MAX {
            has.push_str(&format!(
                " (the rules of a namespace give {GRANTS_OF_NAMESPACE_MAX} grants to one caller: further ones do not \
                 count, so give a role for the whole namespace in place of some)"
            ));
        }
        let (who, remedy) = match &self.credential {
            Credential::Identity { name, .. } => (name.clone(), "adds a rule with `fn access add"),
            _ => (format!("the key {}", self.name()), "makes another with `fn key create"),
        };
        ApiError::new(
            ErrorCode::Forbidden,
            format!(
                "this needs the role {role} for {}, and {who} has {has}: an admin {remedy} --role {role} {options}`",
                scope.in_words(),
            ),
        )
    }

    /// Refuses a caller that has not the role anywhere.
    ///
    /// # Errors
    /// `forbidden`, with the missing role and how to get it.
    pub fn check_role(&self, role: AccessRole) -> Result<(), ApiError> {
        match self.widest(role) {
            Some(_) => Ok(()),
            None => Err(self.refused(role, self.grants.first().map_or(&Scope::Platform, |grant| &grant.scope))),
        }
    }

    /// The caller as a header between roles.
    pub fn header(&self) -> HeaderValue {
        let mut text = match &self.credential {
            Credential::Identity { name, expires_unix_s } => {
                let end = expires_unix_s.map_or(NO_END.to_owned(), |end| end.to_string());
                format!("{AS}{} {end}", utf8_percent_encode(name, NON_ALPHANUMERIC))
            }
            _ => self.name().to_owned(),
        };
        for grant in &self.grants {
            text.push_str(&grant.written());
        }
        // Ids, roles and scopes are plain ASCII, and names are encoded.
        HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static(""))
    }

    /// The caller of a request that a gateway has passed on. An earlier version of the gateway names none, and passes
    /// on requests with the platform's own key alone.
    ///
    /// # Errors
    /// If the header cannot be read.
    pub fn of(headers: &HeaderMap) -> Result<Self, ApiError> {
        let Some(value) = headers.get(CALLER) else {
            return Ok(Self::platform());
        };
        let text = value.to_str().unwrap_or_default();
        read(text).ok_or_else(|| {
            ApiError::new(
                ErrorCode::BadRequest,
                format!("the header {CALLER} cannot be read: {text:?}"),
            )
        })
    }
}

fn read(text: &str) -> Option<Caller> {
    let mut words = text.split(' ');
    let credential = match words.next()? {
        PLATFORM_KEY => Credential::Platform,
        word => match word.strip_prefix(AS) {
            None => Credential::Key(word.parse().ok()?),
            Some(name) => Credential::Identity {
                name: percent_decode_str(name).decode_utf8().ok()?.into_owned(),
                expires_unix_s: match words.next()? {
                    NO_END => None,
                    end => Some(end.parse().ok()?),
                },
            },
        },
    };
    let is_identity = matches!(credential, Credential::Identity { .. });
    let words: Vec<&str> = words.collect();
    let grants = words.chunks(if is_identity { 3 } else { 2 }).map(|words| {
        let (rule, [role, scope]) = match words {
            [rule, role, scope] => (Some(rule.parse().ok()?), [role, scope]),
            [role, scope] if !is_identity => (None, [role, scope]),
            _ => return None,
        };
        Some(Grant {
            rule,
            role: role.parse().ok()?,
            scope: scope.parse().ok()?,
        })
    });
    let grants = grants.collect::<Option<Vec<_>>>()?;
    let fits = match is_identity {
        true => (1..=GRANTS_MAX).contains(&grants.len()),
        false => grants.len() == 1,
    };
    fits.then_some(Caller { credential, grants })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(role: AccessRole, scope: &str) -> Caller {
        Caller::with_key("k-0123456789abcdef".parse().unwrap(), role, scope.parse().unwrap())
    }

    fn grant(role: AccessRole, scope: &str) -> Grant {
        Grant {
            rule: Some(RuleId::generate()),
            role,
            scope: scope.parse().unwrap(),
        }
    }

    fn ada(grants: Vec<Grant>) -> Caller {
        Caller::with_identity(
            "oidc:ada lovelace@https://id.example.com/a".to_owned(),
            Some(17),
            grants,
        )
    }

    #[test]
    fn a_caller_is_read_back_from_its_header() {
        let of_several = vec![
            grant(AccessRole::Deployer, "*.team"),
            grant(AccessRole::Reader, "hello"),
        ];
        let all = [
            Caller::platform(),
            caller(AccessRole::Deployer, "*.team"),
            caller(AccessRole::Invoker, "hello"),
            ada(of_several),
            Caller::with_identity("cert:CN=ünïcode".to_owned(), None, vec![grant(AccessRole::Admin, "*")]),
        ];
        for caller in all {
            let headers = HeaderMap::from_iter([(http::HeaderName::from_static(CALLER), caller.header())]);
            assert_eq!(Caller::of(&headers).unwrap(), caller);
        }
        assert_eq!(Caller::of(&HeaderMap::new()).unwrap(), Caller::platform());
        for text in [
            "",
            "admin",
            "admin admin",
            "admin root *",
            "k-1 reader *",
            "admin admin * *",
            "admin  *",
            "admin admin * reader *",
            "as:ada -",
            "as:ada - admin *",
            "as:ada soon r-0123456789abcdef admin *",
            "as:ada - r-1 admin *",
        ] {
            let headers =
                HeaderMap::from_iter([(http::HeaderName::from_static(CALLER), HeaderValue::from_static(text))]);
            assert!(Caller::of(&headers).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_refusal_names_the_missing_role_and_the_command_that_gives_it() {
        let reader = caller(AccessRole::Reader, "*.team");
        let refused = reader
            .check(AccessRole::Deployer, &"hello.team".parse().unwrap())
            .unwrap_err();
        assert_eq!(refused.code, ErrorCode::Forbidden);
        for part in [
            "role deployer for the function hello.team",
            "k-0123456789abcdef has the role reader for the namespace team",
            "`fn key create --role deployer -n team --function hello`",
        ] {
            assert!(refused.message.contains(part), "{refused}");
        }
        let elsewhere = reader.check(AccessRole::Reader, &Scope::Platform).unwrap_err();
        assert!(elsewhere.message.contains("--all-namespaces"), "{elsewhere}");
        reader
            .check(AccessRole::Reader, &"hello.team".parse().unwrap())
            .unwrap();
        reader.check_role(AccessRole::Reader).unwrap();
        reader.check_role(AccessRole::Invoker).unwrap_err();
        let ada = ada(vec![grant(AccessRole::Reader, "*.team")]);
        let refused = ada.check(AccessRole::Deployer, &"*.team".parse().unwrap()).unwrap_err();
        assert!(
            refused.message.contains("`fn access add --role deployer -n team`"),
            "{refused}"
        );
    }

    #[test]
    fn a_caller_of_several_rules_has_each_role_only_where_its_rule_says() {
        use AccessRole::{Admin, Deployer, Reader};
        let both = ada(vec![grant(Deployer, "*.team"), grant(Reader, "*.other")]);
        let may = |role, scope: &str| both.has(role, &scope.parse().unwrap());
        assert!(may(Deployer, "hello.team") && may(Reader, "hello.other"));
        assert!(!may(Deployer, "hello.other") && !may(Reader, "hello") && !may(Admin, "*.team"));
        assert!(both.meets(&"other".parse().unwrap()) && !both.meets(&Namespace::default()));
        assert_eq!(both.namespace(), None);
        assert_eq!(both.widest(Deployer), Some(&"*.team".parse().unwrap()));
        let wide = ada(vec![
            grant(Reader, "hello.team"),
            grant(Deployer, "*.team"),
            grant(Reader, "*.team"),
        ]);
        assert_eq!(wide.grants.len(), 1, "the others are included");
        assert_eq!(wide.namespace(), Some("team".parse().unwrap()));
        let namespaces = |caller: &Caller| caller.namespaces(Reader).map(|all| all.len());
        assert_eq!((namespaces(&both), namespaces(&Caller::platform())), (Some(2), None));
    }

    #[test]
    fn the_grants_of_one_namespace_take_no_room_in_another() {
        use AccessRole::{Admin, Deployer, Invoker, Reader};
        let may = |caller: &Caller, role, scope: &str| caller.has(role, &scope.parse().unwrap());
        // Older rules of somebody else's namespace, for functions that need not be there.
        let mut grants: Vec<_> = (0..40).map(|n| grant(Admin, &format!("f{n}.evil"))).collect();
        grants.push(grant(Deployer, "*.team"));
        grants.push(grant(Reader, "*.evil"));
        let caller = ada(grants);
        assert!(may(&caller, Deployer, "*.team") && may(&caller, Reader, "*.evil"));
        assert!(may(&caller, Admin, "f0.evil") && !may(&caller, Admin, "f39.evil"));
        assert_eq!(caller.grants.len(), GRANTS_OF_NAMESPACE_MAX + 1);
        let refused = caller.check(Admin, &"f39.evil".parse().unwrap()).unwrap_err();
        assert!(refused.message.contains("16 grants"), "{refused}");
        let elsewhere = caller.check(Admin, &"*.team".parse().unwrap()).unwrap_err();
        assert!(!elsewhere.message.contains("16 grants"), "{elsewhere}");
        let headers = HeaderMap::from_iter([(http::HeaderName::from_static(CALLER), caller.header())]);
        assert_eq!(Caller::of(&headers).unwrap(), caller);
        // As many namespaces as there are have their grants.
        let many: Vec<_> = (0..200).map(|n| grant(Invoker, &format!("*.n{n}"))).collect();
        assert_eq!(ada(many).grants.len(), 200);
        // All that is said of somebody fits into a header, at no namespace's cost.
        let long = "n".repeat(40);
        let mut most: Vec<_> = (0..60)
            .flat_map(|team| (0..15).map(move |n| (team, n)))
            .map(|(team, n)| grant(Admin, &format!("{long}{n}.{long}{team}")))
            .collect();
        most.push(grant(Reader, "*.other"));
        let caller = ada(most);
        assert!(
            caller.header().len() <= GRANTS_BYTES_MAX + 200,
            "{}",
            caller.header().len()
        );
        assert!((0..60).all(|team| may(&caller, Admin, &format!("{long}0.{long}{team}"))));
        assert!(may(&caller, Reader, "*.other"));
        // What is replaced by more gives its room back.
        let more = (0..10).flat_map(|n| [Invoker, Reader, Admin].map(|role| grant(role, &format!("f{n}.team"))));
        assert_eq!(ada(more.collect()).grants.len(), 10);
    }
}

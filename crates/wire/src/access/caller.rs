//! Who calls, as the gateway tells the scheduler.

use http::{HeaderMap, HeaderValue};

use super::{AccessRole, KeyId, Scope};
use crate::error::{ApiError, ErrorCode};
use crate::headers::CALLER;

/// The id of callers with the platform's own key.
const PLATFORM_KEY: &str = "admin";

/// A caller whose key was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Its key. `None` for the platform's own.
    pub key: Option<KeyId>,
    /// Its role.
    pub role: AccessRole,
    /// Where it has that role.
    pub scope: Scope,
}

impl Caller {
    /// The holder of the platform's own key.
    pub fn platform() -> Self {
        Self {
            key: None,
            role: AccessRole::Admin,
            scope: Scope::Platform,
        }
    }

    /// The caller's name in logs and as an owner.
    pub fn name(&self) -> &str {
        self.key.as_ref().map_or(PLATFORM_KEY, KeyId::as_str)
    }

    /// Whether the caller has the role in all of the scope.
    pub fn has(&self, role: AccessRole, scope: &Scope) -> bool {
        self.role.includes(role) && self.scope.covers(scope)
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
        ApiError::new(
            ErrorCode::Forbidden,
            format!(
                "this needs the role {role} for {}, and the key {} has the role {} for {}: an admin makes another \
                 with `fn key create --role {role} {options}`",
                scope.in_words(),
                self.name(),
                self.role,
                self.scope.in_words()
            ),
        )
    }

    /// Refuses a caller that has not the role anywhere.
    ///
    /// # Errors
    /// `forbidden`, with the missing role and how to get it.
    pub fn check_role(&self, role: AccessRole) -> Result<(), ApiError> {
        match self.role.includes(role) {
            true => Ok(()),
            false => Err(self.refused(role, &self.scope)),
        }
    }

    /// The caller as a header between roles.
    pub fn header(&self) -> HeaderValue {
        let text = format!("{} {} {}", self.name(), self.role, self.scope);
        // Ids, roles and scopes are plain ASCII.
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
        let parsed = || {
            let mut words = text.split(' ');
            let (key, role, scope) = (words.next()?, words.next()?, words.next()?);
            let key = match key {
                PLATFORM_KEY => None,
                id => Some(id.parse().ok()?),
            };
            let caller = Self {
                key,
                role: role.parse().ok()?,
                scope: scope.parse().ok()?,
            };
            words.next().is_none().then_some(caller)
        };
        let refused = || {
            ApiError::new(
                ErrorCode::BadRequest,
                format!("the header {CALLER} cannot be read: {text:?}"),
            )
        };
        parsed().ok_or_else(refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(role: AccessRole, scope: &str) -> Caller {
        Caller {
            key: Some("k-0123456789abcdef".parse().unwrap()),
            role,
            scope: scope.parse().unwrap(),
        }
    }

    #[test]
    fn a_caller_is_read_back_from_its_header() {
        let all = [
            Caller::platform(),
            caller(AccessRole::Deployer, "*.team"),
            caller(AccessRole::Invoker, "hello"),
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
    }
}

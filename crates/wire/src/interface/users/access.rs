//! Which role each operation needs, and what a request touches.

use http::Method;
use percent_encoding::percent_decode_str;

use super::described::{Described, Reach};
use super::{ReportSources, in_namespace, passed_on};
use crate::access::{AccessRole, Caller, Scope};
use crate::error::{ApiError, ErrorCode};
use crate::ids::{DEFAULT_NAMESPACE, FunctionName, Namespace};
use crate::interface::{Endpoint as _, Operation};

/// What a request needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Needed {
    /// The role.
    pub role: AccessRole,
    /// Where. `None` if only the scheduler knows.
    pub scope: Option<Scope>,
}

impl Needed {
    /// Refuses a caller that lacks it.
    ///
    /// # Errors
    /// `forbidden`.
    pub fn check(&self, caller: &Caller) -> Result<(), ApiError> {
        match &self.scope {
            Some(scope) => caller.check(self.role, scope),
            None => caller.check_role(self.role),
        }
    }
}

/// What a request changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Touched {
    /// The id of its operation.
    pub name: String,
    /// The namespace in its path. `None` if that is of the platform as a whole, or does not say.
    pub namespace: Option<Namespace>,
    /// What else its path names, with slashes between.
    pub object: String,
}

/// What a request to the admin API changes. `None` if it changes nothing, or there is no such operation.
pub fn touched(method: &Method, path: &str) -> Option<Touched> {
    let (described, names) = found(method, path).filter(|_| !matches!(*method, Method::GET | Method::HEAD))?;
    if described.operation == ReportSources::OPERATION {
        return None;
    }
    let is_in_one = in_namespace(described.operation.path).is_some();
    let namespace = names.namespace.unwrap_or(DEFAULT_NAMESPACE);
    // As the operation reads them, so that no spelling hides a name from whoever looks for it.
    let plain = |name: &str| percent_decode_str(name).decode_utf8_lossy().into_owned();
    let object = names
        .all
        .into_iter()
        .skip(usize::from(is_in_one && names.namespace.is_some()));
    Some(Touched {
        name: described.id(),
        namespace: is_in_one.then(|| namespace.parse().ok()).flatten(),
        object: object.map(plain).collect::<Vec<_>>().join("/"),
    })
}

/// The operation that a request is for, and what its path names.
fn found<'a>(method: &Method, path: &'a str) -> Option<(&'static Described, Names<'a>)> {
    passed_on().find_map(|described| {
        let operation = &described.operation;
        Operation::find(std::slice::from_ref(operation), method, operation.path)?;
        let long = in_namespace(operation.path);
        let templates = [Some(operation.path), long.as_deref()];
        let names = templates
            .into_iter()
            .flatten()
            .find_map(|template| named(template, path))?;
        Some((described, names))
    })
}

/// What a request to the admin API needs. `None` if it has no such operation.
///
/// # Errors
/// `bad_request` if a name in the path cannot be one, or the query names a namespace.
pub fn needed(method: &Method, path: &str, query: Option<&str>) -> Result<Option<Needed>, ApiError> {
    let Some((described, names)) = found(method, path) else {
        return Ok(None);
    };
    let Some(access) = described.access else {
        return Ok(None);
    };
    check_query(query)?;
    let bad = |error: &dyn std::error::Error| ApiError::new(ErrorCode::BadRequest, error.to_string());
    let namespace = names
        .namespace
        .map(str::parse::<Namespace>)
        .transpose()
        .map_err(|e| bad(&e))?;
    let namespace = namespace.unwrap_or_default();
    let scope = match access.reach {
        Reach::Platform => Some(Scope::Platform),
        Reach::Namespace => Some(Scope::Namespace(namespace)),
        Reach::Function => {
            let name: FunctionName = names.name.unwrap_or_default().parse().map_err(|e| bad(&e))?;
            Some(Scope::of(Some(namespace), Some(&name)))
        }
        Reach::Content => None,
    };
    Ok(Some(Needed {
        role: access.role,
        scope,
    }))
}

/// Refuses a query that names a namespace: what a caller may do is judged by the path.
///
/// # Errors
/// `bad_request`.
pub fn check_query(query: Option<&str>) -> Result<(), ApiError> {
    let pairs: Vec<(String, String)> =
        query.map_or_else(Vec::new, |q| serde_urlencoded::from_str(q).unwrap_or_default());
    match pairs.iter().any(|(name, _)| name == "namespace") {
        true => Err(ApiError::new(
            ErrorCode::BadRequest,
            "a namespace is not named in the query: use /v1/namespaces/NAMESPACE/...",
        )),
        false => Ok(()),
    }
}

/// What a path names.
#[derive(Debug, Default)]
struct Names<'a> {
    namespace: Option<&'a str>,
    name: Option<&'a str>,
    /// All of them in the path's order.
    all: Vec<&'a str>,
}

/// What the path names by the template, if it has that form.
fn named<'a>(template: &str, path: &'a str) -> Option<Names<'a>> {
    let mut names = Names::default();
    let (mut forms, mut parts) = (template.split('/'), path.split('/'));
    loop {
        let (form, part) = match (forms.next(), parts.next()) {
            (None, None) => return Some(names),
            (Some(form), Some(part)) => (form, part),
            _ => return None,
        };
        match form {
            "{namespace}" => names.namespace = Some(part),
            "{name}" => names.name = Some(part),
            _ => {}
        }
        match form.starts_with('{') {
            true if !part.is_empty() => names.all.push(part),
            false if form == part => {}
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interface::users::described;

    fn needs(method: Method, path: &str) -> String {
        match needed(&method, path, None) {
            Ok(Some(Needed { role, scope })) => {
                format!("{role} {}", scope.map_or("?".to_owned(), |scope| scope.to_string()))
            }
            Ok(None) => "none".to_owned(),
            Err(error) => error.code.as_str().to_owned(),
        }
    }

    #[test]
    fn every_operation_of_the_api_needs_a_role_where_its_path_says() {
        for described in described() {
            let path = described.operation.path;
            let is_open =
                !path.starts_with("/v1/") && path != "/metrics" || ["/v1/openapi.json", "/v1/auth"].contains(&path);
            let Some(access) = described.access else {
                assert!(is_open, "{path} needs no key");
                continue;
            };
            assert!(!is_open, "{path} needs a key");
            let changes = described.operation.method != Method::GET;
            assert!(!changes || access.role != AccessRole::Reader, "readers change {path}");
            let long = in_namespace(path);
            let is_function = long.is_some() && path.starts_with("/v1/functions/");
            match access.reach {
                Reach::Function => assert!(is_function, "{path} names no function"),
                Reach::Namespace => assert!(long.is_some() && !is_function, "{path} names no namespace"),
                Reach::Content => assert!(!is_function, "{path} names its function"),
                Reach::Platform => assert!(long.is_none(), "{path} is in a namespace"),
            }
        }
    }

    #[test]
    fn a_request_needs_its_role_where_its_path_says() {
        let table = [
            (Method::GET, "/v1/functions", "reader *.default"),
            (Method::HEAD, "/v1/functions", "reader *.default"),
            (Method::POST, "/v1/functions", "deployer ?"),
            (Method::POST, "/v1/namespaces/team/functions", "deployer ?"),
            (Method::GET, "/v1/namespaces/team/functions", "reader *.team"),
            (Method::DELETE, "/v1/functions/hello", "deployer hello"),
            (Method::GET, "/v1/functions/hello/versions/7", "reader hello"),
            (Method::GET, "/v1/functions/hello/instances/i-a/objects", "reader hello"),
            (Method::GET, "/v1/instances/i-a/objects", "reader *"),
            (
                Method::PUT,
                "/v1/namespaces/team/functions/hello/aliases/live",
                "deployer hello.team",
            ),
            (Method::PUT, "/v1/namespaces/team/secrets/DB", "deployer *.team"),
            (Method::GET, "/v1/status", "reader *"),
            (Method::POST, "/v1/collections", "admin *"),
            (Method::PUT, "/v1/namespaces/team", "admin *"),
            (Method::POST, "/v1/keys", "admin ?"),
            (Method::GET, "/v1/async/a-1", "reader ?"),
            // There are no such operations.
            (Method::POST, "/v1/status", "none"),
            (Method::GET, "/v1/functions/", "none"),
            (Method::GET, "/v1//functions", "none"),
            (Method::GET, "/v1/functions/hello/", "none"),
            (Method::GET, "/v1/nothing", "none"),
            (Method::GET, "/internal/recalls", "none"),
            // A name that is written otherwise than it is.
            (Method::GET, "/v1/functions/%68ello", "bad_request"),
            (Method::GET, "/v1/namespaces/te%61m/functions", "bad_request"),
            (Method::GET, "/v1/namespaces/Team/functions/hello", "bad_request"),
        ];
        for (method, path, expected) in table {
            assert_eq!(needs(method.clone(), path), expected, "{method} {path}");
        }
    }

    #[test]
    fn a_request_that_changes_something_says_what() {
        let table = [
            (Method::DELETE, "/v1/functions/hello", "delete_function default hello"),
            (Method::POST, "/v1/namespaces/team/functions", "deploy team "),
            (
                Method::PUT,
                "/v1/namespaces/team/functions/hello/aliases/live",
                "set_alias team hello/live",
            ),
            (Method::PUT, "/v1/secrets/DB", "set_secret default DB"),
            (Method::PUT, "/v1/secrets/D%42", "set_secret default DB"),
            (Method::PUT, "/v1/namespaces/team", "create_namespace - team"),
            (Method::DELETE, "/v1/keys/k-1", "revoke_key - k-1"),
            (Method::POST, "/v1/access", "add_rule - "),
            (Method::DELETE, "/v1/access/r-1", "remove_rule - r-1"),
            (Method::PUT, "/v1/workers/w-1/drain", "drain_worker - w-1"),
            (Method::POST, "/v1/collections", "collect - "),
            (Method::POST, "/v1/namespaces/team/sources/reports", "none"),
            (Method::GET, "/v1/functions", "none"),
            (Method::HEAD, "/v1/functions", "none"),
            (Method::POST, "/v1/nothing", "none"),
        ];
        for (method, path, expected) in table {
            let told = touched(&method, path).map_or("none".to_owned(), |touched| {
                let namespace = touched.namespace.map_or("-".to_owned(), |n| n.to_string());
                format!("{} {namespace} {}", touched.name, touched.object)
            });
            assert_eq!(told, expected, "{method} {path}");
        }
    }

    #[test]
    fn a_namespace_in_the_query_is_refused_however_it_is_written() {
        for query in [
            "namespace=team",
            "tail=1&namespace=team",
            "n%61mespace=team",
            "namespace",
        ] {
            let refused = needed(&Method::GET, "/v1/functions/hello/logs", Some(query)).unwrap_err();
            assert_eq!(refused.code, ErrorCode::BadRequest, "{query}");
        }
        let other = needed(&Method::GET, "/v1/functions/hello/logs", Some("tail=1&x=namespace"));
        assert!(other.unwrap().is_some());
    }
}

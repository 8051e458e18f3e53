//! HTTP interfaces, each said once. An operation is a type whose fields are the parameters of its path and query. The
//! server registers a handler for the type ([`Routes`]), a client sends a value of it ([`Endpoint::uri`]), and
//! [`Operation`] describes it to whoever checks callers or documents the interface.
//!
//! - [`scheduler`]: what gateways and workers ask of the scheduler.
//! - [`worker`]: what the scheduler and other workers ask of a worker.
//! - [`users`]: what users ask of the platform.
//! - [`version`]: which versions of these interfaces understand each other.

mod role;
pub mod scheduler;
mod serve;
pub mod users;
pub mod version;
pub mod worker;

use http::{Method, StatusCode};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use role::Role;
pub use serve::{Call, Params, Routes};

/// What must be escaped in a segment of a path.
const IN_SEGMENT: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'/')
    .add(b'<')
    .add(b'>')
    .add(b'?');

/// An operation of an interface. The type's fields are its parameters: those that the path names in braces are in the
/// path, the others in the query.
pub trait Endpoint: Serialize + DeserializeOwned + Send + 'static {
    /// What is known of it without its types.
    const OPERATION: Operation;
    /// The request's body, as JSON. `()` for none, and for one that is no JSON.
    type Body: Serialize + DeserializeOwned + Send;
    /// The response's body, as JSON. `()` for none, and for one that is no JSON.
    type Answer: Serialize + DeserializeOwned + Send;

    /// The path and query of a request with these parameters.
    fn uri(&self) -> String {
        let encoded = serde_urlencoded::to_string(self).unwrap_or_default();
        let pairs: Vec<(String, String)> = serde_urlencoded::from_str(&encoded).unwrap_or_default();
        let in_namespace = pairs.iter().any(|(name, _)| name == "namespace");
        // A peer of the release before knows only the former path.
        let path = Self::OPERATION.former.unwrap_or(Self::OPERATION.path);
        let mut path = in_namespace
            .then(|| users::in_namespace(path))
            .flatten()
            .unwrap_or_else(|| path.to_owned());
        let mut query = Vec::new();
        for pair in pairs {
            let place = format!("{{{}}}", pair.0);
            match path.contains(&place) {
                true => path = path.replace(&place, &utf8_percent_encode(&pair.1, IN_SEGMENT).to_string()),
                false => query.push(pair),
            }
        }
        match query.is_empty() {
            true => path,
            false => path + "?" + &serde_urlencoded::to_string(query).unwrap_or_default(),
        }
    }

    /// A request's body as it is sent; empty for none.
    fn encode(body: &Self::Body) -> Vec<u8> {
        // Only maps whose keys are no texts are no JSON, and no message has one.
        let json = serde_json::to_vec(body).unwrap_or_default();
        if json == NONE { Vec::new() } else { json }
    }

    /// The body of a successful response.
    ///
    /// # Errors
    /// If it is not the JSON of an answer.
    fn decode(body: &[u8]) -> Result<Self::Answer, serde_json::Error> {
        serde_json::from_slice(or_none(body))
    }
}

/// JSON of `()`.
const NONE: &[u8] = b"null";

/// The body, or the JSON of `()` if there is none.
fn or_none(body: &[u8]) -> &[u8] {
    if body.is_empty() { NONE } else { body }
}

/// An operation without its types.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// Its method.
    pub method: Method,
    /// Its path, with parameters in braces.
    pub path: &'static str,
    /// The path that it had in the release before, if that was another. It is answered under both, and still called
    /// under this one.
    pub former: Option<&'static str>,
    /// Status of its successful responses.
    pub status: StatusCode,
    /// The roles that may call it.
    pub callers: &'static [Role],
}

impl Operation {
    /// The operation among `all` with this method and path template. `HEAD` is answered as `GET`.
    pub fn find<'a>(all: &'a [Self], method: &Method, path: &str) -> Option<&'a Self> {
        let method = if method == Method::HEAD { &Method::GET } else { method };
        all.iter()
            .find(|o| o.method == method && (o.path == path || o.former == Some(path)))
    }
}

/// Defines the operations of an interface, and a table of them. Each is written as
/// `[CALLERS] METHOD PATH NAME { FIELDS } (BODY) => STATUS ANSWER;`, where optional fields follow a `;`. A path that
/// was another in the release before is written `PATH | FORMER`.
#[macro_export]
macro_rules! endpoints {
    (
        $(#[$about:meta])* $table:ident:
        $(
            $(#[$doc:meta])*
            [$($caller:ident)*] $method:ident $path:literal $(| $former:literal)? $name:ident {
                $($(#[$field_doc:meta])* $field:ident: $type:ty),*
                $(; $($(#[$maybe_doc:meta])* $maybe:ident: $maybe_type:ty),+)?
            } ($($body:ty)?) => $status:ident $answer:ty;
        )+
    ) => {
        $(#[$about])*
        pub const $table: &[$crate::interface::Operation] =
            &[$(<$name as $crate::interface::Endpoint>::OPERATION),+];

        $(
            $(#[$doc])*
            #[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
            pub struct $name {
                $($(#[$field_doc])* pub $field: $type,)*
                $($($(#[$maybe_doc])* pub $maybe: Option<$maybe_type>,)+)?
            }

            impl $crate::interface::Endpoint for $name {
                const OPERATION: $crate::interface::Operation = $crate::interface::Operation {
                    method: http::Method::$method,
                    path: $path,
                    former: $crate::endpoints!(@former $($former)?),
                    status: http::StatusCode::$status,
                    callers: &[$($crate::interface::Role::$caller),*],
                };
                type Body = $crate::endpoints!(@body $($body)?);
                type Answer = $answer;
            }
        )+
    };
    (@former) => { None };
    (@former $former:literal) => { Some($former) };
    (@body) => { () };
    (@body $body:ty) => { $body };
}

#[cfg(test)]
#[expect(unreachable_pub, reason = "the macro defines what is public")]
mod tests {
    use super::*;
    use crate::InstanceId;

    crate::endpoints! {
        /// An interface.
        ALL:
        /// Takes parameters in its path and its query.
        [Worker Gateway] PUT "/things/{id}/{what}" PutThing {
            /// The id.
            id: InstanceId,
            /// Anything.
            what: String,
            /// Required.
            size: u32;
            /// Not required.
            forced: bool
        } (Vec<u32>) => OK ();
    }

    #[test]
    fn parameters_that_the_path_names_are_in_it_and_the_others_in_the_query() {
        let id: InstanceId = "i-1".parse().unwrap();
        let mut put = PutThing {
            id,
            what: "a/b c".to_owned(),
            size: 3,
            forced: None,
        };
        assert_eq!(put.uri(), "/things/i-1/a%2Fb%20c?size=3");
        put.forced = Some(true);
        assert_eq!(put.uri(), "/things/i-1/a%2Fb%20c?size=3&forced=true");
    }

    #[test]
    fn a_body_of_nothing_is_not_sent_and_is_read_back() {
        assert_eq!(PutThing::encode(&vec![1]), b"[1]");
        PutThing::decode(b"").unwrap();
        PutThing::decode(b"null").unwrap();
        assert!(PutThing::decode(b"{}").is_err());
    }

    #[test]
    fn an_operation_is_found_by_its_method_and_path() {
        let path = PutThing::OPERATION.path;
        assert_eq!(
            Operation::find(ALL, &Method::PUT, path).unwrap().callers,
            [Role::Worker, Role::Gateway]
        );
        assert_eq!(Operation::find(ALL, &Method::GET, path), None);
    }
}

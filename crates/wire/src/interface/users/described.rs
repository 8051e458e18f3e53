//! Operations with what users are told of them.

use http::StatusCode;
use utoipa::ToSchema;
use utoipa::openapi::schema::ArrayBuilder;
use utoipa::openapi::{Ref, RefOr, Schema};

use crate::access::AccessRole;
use crate::error::ErrorCode;
use crate::interface::Operation;

/// What an operation touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// The platform as a whole.
    Platform,
    /// The namespace in its path.
    Namespace,
    /// The function in its path.
    Function,
    /// What its body or its answer names: the scheduler checks that. It needs the role somewhere.
    Content,
}

/// What a caller needs for an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// The role.
    pub role: AccessRole,
    /// Where it needs the role.
    pub reach: Reach,
}

/// An operation with what users are told of it.
#[derive(Debug)]
pub struct Described {
    /// The operation.
    pub operation: Operation,
    /// Its name.
    pub name: &'static str,
    /// Its group.
    pub tag: &'static str,
    /// What its callers need. `None` if anybody may call it.
    pub access: Option<Access>,
    /// A line, and more after an empty one.
    pub text: &'static str,
    /// Its parameters, but for the namespace.
    pub fields: &'static [Field],
    /// The request's body.
    pub takes: Option<Message>,
    /// Its successful responses, by status.
    pub answers: &'static [(StatusCode, Message)],
    /// Its errors, each with when it comes.
    pub errors: &'static [(ErrorCode, &'static str)],
}

impl Described {
    /// Its name in the OpenAPI document and in the audit log: `describe_function` of `DescribeFunction`.
    pub fn id(&self) -> String {
        let mut out = String::new();
        for c in self.name.chars() {
            if c.is_ascii_uppercase() && !out.is_empty() {
                out.push('_');
            }
            out.push(c.to_ascii_lowercase());
        }
        out
    }
}

/// Where a parameter is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In the path if it names it, otherwise in the query.
    Uri,
    /// In the query, with other meanings of the same path.
    Query,
    /// In a header.
    Header,
}

/// A parameter.
#[derive(Debug)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// Where it is.
    pub place: Place,
    /// What it is.
    pub text: &'static str,
    /// Whether there is no request without it.
    pub is_required: bool,
    /// Its form.
    pub schema: fn() -> RefOr<Schema>,
}

/// The body of a request or response.
#[derive(Debug, Clone, Copy)]
pub struct Message {
    /// What it is.
    pub text: &'static str,
    /// Its media type, and its form. `None` for none, or one that is not the platform's.
    pub content: Option<(&'static str, Form)>,
}

/// Gives a schema, and adds those that it refers to.
pub type Form = fn(&mut Schemas) -> RefOr<Schema>;

/// Schemas by name.
pub type Schemas = Vec<(String, RefOr<Schema>)>;

/// One of these. Its schema is referred to by name, unless it has no fields.
pub fn one<T: ToSchema>(all: &mut Schemas) -> RefOr<Schema> {
    let schema = T::schema();
    if let RefOr::T(Schema::Object(object)) = &schema
        && object.properties.is_empty()
    {
        return schema;
    }
    T::schemas(all);
    all.push((T::name().into_owned(), schema));
    RefOr::Ref(Ref::from_schema_name(T::name()))
}

/// A list of these.
pub(super) fn list<T: ToSchema>(all: &mut Schemas) -> RefOr<Schema> {
    ArrayBuilder::new().items(one::<T>(all)).build().into()
}

/// Defines operations with what users are told of them, and a table of each. An operation begins with its group and
/// what its callers need: a role and where, or `Open`. What follows the answer is, in this order: parameters that are
/// no fields, the media types of bodies that are no JSON, other answers, and errors.
macro_rules! described {
    (
        $(#[$about:meta])* $table:ident, $described:ident:
        $(
            $(#[doc = $doc:literal])*
            $tag:ident [$($access:ident)+] $method:ident $path:literal $name:ident {
                $($(#[doc = $field_doc:literal])* $field:ident: $type:ident),*
                $(; $($(#[doc = $maybe_doc:literal])* $maybe:ident: $maybe_type:ident),+)?
            } ($($body:ident)?) => $status:ident $answer:tt $said:literal
            $(header $header:literal $header_doc:literal)*
            $(query $query:literal $query_doc:literal)*
            $(takes $taken:literal $taken_form:ident $taken_doc:literal)?
            $(sends $sent:literal $line:ident)?
            $(or $other:ident $other_answer:tt $other_said:literal)*
            fails $($code:ident $($when:literal)?),*;
        )+
    ) => {
        $crate::endpoints! {
            $(#[$about])* $table:
            $(
                $(#[doc = $doc])*
                [Gateway] $method $path $name {
                    $($(#[doc = $field_doc])* $field: $type),*
                    $(; $($(#[doc = $maybe_doc])* $maybe: $maybe_type),+)?
                } ($($body)?) => $status described!(@type $answer);
            )+
        }

        /// The same operations with what users are told of them.
        pub const $described: &[Described] = &[$(Described {
            operation: <$name as $crate::interface::Endpoint>::OPERATION,
            name: stringify!($name),
            tag: stringify!($tag),
            access: described!(@access $($access)+),
            text: concat!($($doc, "\n"),*),
            fields: &[
                $(Field {
                    name: stringify!($field),
                    place: Place::Uri,
                    text: concat!($($field_doc),*),
                    is_required: true,
                    schema: <$type as utoipa::PartialSchema>::schema,
                },)*
                $($(Field {
                    name: stringify!($maybe),
                    place: Place::Uri,
                    text: concat!($($maybe_doc),*),
                    is_required: false,
                    schema: <$maybe_type as utoipa::PartialSchema>::schema,
                },)+)?
                $(described!(@field Header $header $header_doc),)*
                $(described!(@field Query $query $query_doc),)*
            ],
            takes: described!(@takes ($($body)?) $($taken $taken_form $taken_doc)?),
            answers: &[
                (http::StatusCode::$status, described!(@message $answer $said $($sent $line)?)),
                $((http::StatusCode::$other, described!(@message $other_answer $other_said)),)*
            ],
            errors: &[$(($crate::ErrorCode::$code, concat!($($when)?)),)*],
        }),+];
    };
    (@access Open) => { None };
    (@access $role:ident $reach:ident) => {
        Some(Access {
            role: $crate::access::AccessRole::$role,
            reach: Reach::$reach,
        })
    };
    (@type ()) => { () };
    (@type [$type:ident]) => { Vec<$type> };
    (@type $type:ident) => { $type };
    (@field $place:ident $name:literal $text:literal) => {
        Field {
            name: $name,
            place: Place::$place,
            text: $text,
            is_required: false,
            schema: <String as utoipa::PartialSchema>::schema,
        }
    };
    (@takes ()) => { None };
    (@takes ($body:ident)) => { Some(described!(@message $body "")) };
    (@takes () $media:literal $form:ident $text:literal) => {
        Some(Message { text: $text, content: Some(($media, one::<$form>)) })
    };
    (@message () $text:literal) => { Message { text: $text, content: None } };
    (@message () $text:literal $media:literal $line:ident) => {
        Message { text: $text, content: Some(($media, one::<$line>)) }
    };
    (@message [$type:ident] $text:literal) => {
        Message { text: $text, content: Some(("application/json", list::<$type>)) }
    };
    (@message $type:ident $text:literal) => {
        Message { text: $text, content: Some(("application/json", one::<$type>)) }
    };
}

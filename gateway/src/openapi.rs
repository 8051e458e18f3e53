//! The OpenAPI document of what users ask of the platform, made of the operations that handlers are registered for.

use std::collections::BTreeMap;

use http::StatusCode;
use rekindle_wire::interface::users::{
    Access, Described, Field, Message, Place, Reach, Schemas, described, in_namespace, one,
};
use rekindle_wire::{ApiError, ErrorCode};
use utoipa::openapi::path::{HttpMethod, Operation, OperationBuilder, Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::response::{Response, ResponseBuilder};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::tag::TagBuilder;
use utoipa::openapi::{
    ComponentsBuilder, ContentBuilder, InfoBuilder, OpenApi, OpenApiBuilder, PathItem, Paths, Required,
};

const ABOUT: &str = "Functions that are restored instead of booted. Everything under /v1/ but this document needs a \
                     key (`Authorization: Bearer KEY`) with the role that its description names. Errors are \
                     `{code, message, request_id}`; \
                     docs/reference/errors/ has a page per code.";
const KEY: &str = "key";
const TAGS: [(&str, &str); 7] = [
    ("functions", "Deploying, describing, deleting"),
    ("invocations", "Calling functions"),
    ("secrets", "Values that only instances see"),
    ("access", "Keys and namespaces"),
    ("schedules", "What the platform runs by itself, and when"),
    ("sources", "Queues whose messages functions are invoked with"),
    ("platform", "What runs, and whether it does"),
];

/// The document served at `/v1/openapi.json`.
pub fn document() -> OpenApi {
    let mut schemas = Schemas::new();
    let mut paths = Paths::new();
    for described in described() {
        let operation = operation(described, &mut schemas);
        if let Some(path) = in_namespace(described.operation.path) {
            let mut operation = operation.clone();
            operation.operation_id = operation.operation_id.map(|id| id + "_in_namespace");
            add(&mut paths, described, &path, operation);
        }
        add(&mut paths, described, described.operation.path, operation);
    }
    let key = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some(
            "A key of `fn key create`, or the platform's own, which `fn up` makes at its first start",
        ))
        .build();
    let tags = TAGS.map(|(name, text)| TagBuilder::new().name(name).description(Some(text)).build());
    OpenApiBuilder::new()
        .info(
            InfoBuilder::new()
                .title("Rekindle")
                .version(env!("CARGO_PKG_VERSION"))
                .description(Some(ABOUT))
                .build(),
        )
        .paths(paths)
        .components(Some(
            ComponentsBuilder::new()
                .schemas_from_iter(schemas)
                .security_scheme(KEY, SecurityScheme::Http(key))
                .build(),
        ))
        .tags(Some(tags))
        .build()
}

/// Adds an operation with those of its parameters that belong to this path.
fn add(paths: &mut Paths, described: &Described, path: &str, mut operation: Operation) {
    let is_here = |field: &&Field| field.name != "namespace" || path.contains("{namespace}");
    let parameters = described
        .fields
        .iter()
        .filter(is_here)
        .map(|field| parameter(field, path));
    operation.parameters = Some(parameters.map(Into::into).collect::<Vec<_>>()).filter(|all| !all.is_empty());
    let method = match described.operation.method {
        http::Method::POST => HttpMethod::Post,
        http::Method::PUT => HttpMethod::Put,
        http::Method::DELETE => HttpMethod::Delete,
        _ => HttpMethod::Get,
    };
    let item = PathItem::new(method, operation);
    paths.paths.entry(path.to_owned()).or_default().merge_operations(item);
}

fn parameter(field: &Field, path: &str) -> Parameter {
    let is_in_path = path.contains(&format!("{{{}}}", field.name));
    let place = match field.place {
        Place::Header => ParameterIn::Header,
        Place::Uri if is_in_path => ParameterIn::Path,
        Place::Uri | Place::Query => ParameterIn::Query,
    };
    let is_required = field.is_required || is_in_path;
    ParameterBuilder::new()
        .name(field.name)
        .parameter_in(place)
        .required(if is_required { Required::True } else { Required::False })
        .description(Some(field.text.trim()))
        .schema(Some((field.schema)()))
        .build()
}

fn operation(described: &Described, schemas: &mut Schemas) -> Operation {
    let text = described.text.trim().lines().map(str::trim).collect::<Vec<_>>();
    let (summary, rest) = text.split_first().unwrap_or((&"", &[]));
    let mut description = rest.join("\n").trim().to_owned();
    if let Some(access) = &described.access {
        let needs = [description, needs(access)];
        description = needs.join("\n\n").trim().to_owned();
    }
    let mut operation = OperationBuilder::new()
        .tag(described.tag)
        .operation_id(Some(described.id()))
        .summary(Some(*summary))
        .description((!description.is_empty()).then_some(description));
    if described.access.is_some() {
        operation = operation.security(SecurityRequirement::new(KEY, Vec::<String>::new()));
    }
    if let Some(Message {
        text,
        content: Some((media, schema)),
    }) = described.takes
    {
        let content = ContentBuilder::new().schema(Some(schema(schemas))).build();
        let body = RequestBodyBuilder::new()
            .content(media, content)
            .description((!text.is_empty()).then_some(text))
            .required(Some(Required::True));
        operation = operation.request_body(Some(body.build()));
    }
    for (status, message) in described.answers {
        operation = operation.response(status.as_str(), response(message, schemas));
    }
    for (status, text) in errors(described) {
        let message = Message {
            text: "",
            content: Some(("application/json", one::<ApiError>)),
        };
        let mut response = response(&message, schemas);
        response.description = text;
        operation = operation.response(status.as_str(), response);
    }
    operation.build()
}

fn response(message: &Message, schemas: &mut Schemas) -> Response {
    let response = ResponseBuilder::new().description(message.text);
    let response = match message.content {
        Some((media, schema)) => response.content(media, ContentBuilder::new().schema(Some(schema(schemas))).build()),
        None => response,
    };
    response.build()
}

/// An operation's errors by status, each status with its codes and when they come.
fn errors(described: &Described) -> BTreeMap<StatusCode, String> {
    let refused = [
        (ErrorCode::Unauthorized, ""),
        (ErrorCode::Forbidden, "the key has not the role, or not there"),
    ];
    let refused = refused.iter().filter(|_| described.access.is_some());
    let mut by_status: BTreeMap<StatusCode, String> = BTreeMap::new();
    for (code, when) in refused.chain(described.errors) {
        let text = by_status.entry(code.status()).or_default();
        if !text.is_empty() {
            text.push_str("; ");
        }
        text.push_str(&format!("`{}`", code.as_str()));
        if !when.is_empty() {
            text.push_str(&format!(": {when}"));
        }
    }
    by_status
}

/// What the operation's callers need, in words.
fn needs(access: &Access) -> String {
    let place = match access.reach {
        Reach::Platform => "for the whole platform",
        Reach::Namespace => "for the namespace",
        Reach::Function => "for the function",
        Reach::Content => "for what it is about",
    };
    format!("Needs the role `{}` {place}.", access.role)
}

#[cfg(test)]
mod recorded;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rekindle_wire::interface::users::{ADMIN, FUNCTIONS, GATEWAY};
    use serde_json::Value;

    use super::*;

    /// The names that a document refers to schemas by.
    fn references(value: &Value, into: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                if let Some(Value::String(name)) = fields.get("$ref") {
                    into.insert(name.clone());
                }
                fields.values().for_each(|field| references(field, into));
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, into)),
            _ => {}
        }
    }

    #[test]
    fn every_operation_is_described_once_and_nothing_else() {
        let document = serde_json::to_value(document()).unwrap();
        let mut described = Vec::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            let methods = item.as_object().unwrap().keys();
            described.extend(methods.map(|method| (method.to_uppercase(), path.clone())));
        }
        let mut defined = Vec::new();
        for operation in FUNCTIONS.iter().chain(ADMIN).chain(GATEWAY) {
            let method = operation.method.to_string();
            defined.extend(in_namespace(operation.path).map(|path| (method.clone(), path)));
            defined.push((method, operation.path.to_owned()));
        }
        described.sort();
        defined.sort();
        assert_eq!(described, defined);
    }

    #[test]
    fn what_is_referred_to_is_described() {
        let document = serde_json::to_value(document()).unwrap();
        let mut used = BTreeSet::new();
        references(&document, &mut used);
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let known: BTreeSet<_> = schemas
            .keys()
            .map(|name| format!("#/components/schemas/{name}"))
            .collect();
        assert_eq!(used.difference(&known).collect::<Vec<_>>(), Vec::<&String>::new());
        assert!(known.contains("#/components/schemas/LogLine"));
    }
}

//! The document against the one that is recorded: whoever wrote a client for that can go on.
//!
//! The record is `docs/reference/openapi.json`. It says what is served, so it is written anew with
//! `REKINDLE_UPDATE_DOCS=1`, but only with what breaks no client. To break them on purpose, remove the file first.

use std::path::PathBuf;

use serde_json::{Map, Value, json};

const UPDATE: &str = "REKINDLE_UPDATE_DOCS";
/// What is for people alone.
const TEXTS: [&str; 5] = ["description", "summary", "version", "example", "deprecated"];
/// What has names for keys, and may have more of them.
const MAPS: [&str; 5] = ["paths", "properties", "schemas", "responses", "content"];

/// Lists that say what is asked for: neither more nor less may be. Others may have more items, such as values.
const WHOLE: [&str; 3] = ["required", "security", "allOf"];

/// What a client of the old document could not do any more, each with its place.
fn broken(place: &str, old: &Value, new: &Value, found: &mut Vec<String>) {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => fields(place, old, new, found),
        (Value::Array(old), Value::Array(new)) => items(place, old, new, found),
        _ if old == new => {}
        _ => found.push(format!("{place} was {old} and is {new}")),
    }
}

fn fields(place: &str, old: &Map<String, Value>, new: &Map<String, Value>, found: &mut Vec<String>) {
    let mut above = place.rsplit('>');
    let (own, parent) = (above.next().unwrap_or_default(), above.next().unwrap_or_default());
    // The operations of a path are a map too.
    let is_map = parent == "paths" || MAPS.contains(&own) && parent != "properties";
    let is_text = |name: &String| !is_map && TEXTS.contains(&name.as_str());
    for (name, value) in old.iter().filter(|(name, _)| !is_text(name)) {
        let place = format!("{place}>{name}");
        match new.get(name) {
            // One schema may be of requests, which must have these fields, and of answers, which always have them.
            Some(now) if WHOLE.contains(&name.as_str()) && value.is_array() => same_set(&place, value, now, found),
            Some(now) => broken(&place, value, now, found),
            None => found.push(format!("{place} is gone")),
        }
    }
    for (name, value) in new
        .iter()
        .filter(|(name, _)| !is_map && !is_text(name) && !old.contains_key(*name))
    {
        match value {
            Value::Array(all) if name == "parameters" => items(&format!("{place}>{name}"), &[], all, found),
            Value::Bool(false) if name == "required" => {}
            _ => found.push(format!("{place} has {name}, which it had not")),
        }
    }
}

fn same_set(place: &str, old: &Value, new: &Value, found: &mut Vec<String>) {
    let sorted = |value: &Value| {
        let mut names: Vec<_> = value.as_array().into_iter().flatten().map(Value::to_string).collect();
        names.sort();
        names
    };
    if sorted(old) != sorted(new) {
        found.push(format!("{place} was {old} and is {new}"));
    }
}

/// Each item stays. Parameters are told by name and place, and no new one may be required.
fn items(place: &str, old: &[Value], new: &[Value], found: &mut Vec<String>) {
    let name = |item: &Value| match (&item["name"], &item["in"]) {
        (Value::String(name), Value::String(place)) => Some(format!("{place} {name}")),
        _ => None,
    };
    let is_same = |one: &Value, other: &Value| match name(one) {
        Some(named) => name(other) == Some(named),
        None => {
            let mut differences = Vec::new();
            broken(place, one, other, &mut differences);
            differences.is_empty()
        }
    };
    for item in old {
        let what = name(item).unwrap_or_else(|| item.to_string());
        match new.iter().find(|other| is_same(item, other)) {
            Some(other) => broken(&format!("{place}>{what}"), item, other, found),
            None => found.push(format!("{place} has {what} no more")),
        }
    }
    let is_new = |item: &&Value| !old.iter().any(|other| is_same(other, item));
    for item in new.iter().filter(|item| item["required"] == true).filter(is_new) {
        found.push(format!("{place} requires {}", name(item).unwrap_or_default()));
    }
}

fn breaks(old: &Value, new: &Value) -> Vec<String> {
    let mut found = Vec::new();
    broken("", old, new, &mut found);
    found
}

#[test]
fn a_client_that_was_written_for_the_record_can_go_on() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/openapi.json");
    let served = serde_json::to_string_pretty(&super::document()).unwrap() + "\n";
    let is_update = std::env::var_os(UPDATE).is_some();
    let recorded = match std::fs::read_to_string(&path) {
        Err(error) if is_update && error.kind() == std::io::ErrorKind::NotFound => served.clone(),
        read => read.unwrap(),
    };
    let [old, new] = [&recorded, &served].map(|text| serde_json::from_str::<Value>(text).unwrap());
    let found = breaks(&old, &new);
    assert!(found.is_empty(), "a client of the record cannot go on: {found:#?}");
    if is_update {
        std::fs::write(&path, &served).unwrap();
    } else {
        assert!(
            recorded == served,
            "docs/reference/openapi.json is not what is served: run with {UPDATE}=1"
        );
    }
}

/// A small document.
fn example() -> Value {
    let name = json!({"name": "name", "in": "path", "required": true, "schema": {"type": "string"}});
    let limit = json!({"name": "limit", "in": "query", "required": false, "schema": {"type": "integer"}});
    json!({
        "info": {"title": "Rekindle", "version": "1"},
        "paths": {
            "/things": {"get": {"operationId": "list", "responses": {"200": {"description": "all"}}}},
            "/things/{name}": {
                "get": {"operationId": "read", "parameters": [name, limit], "security": [{"key": []}]},
            },
        },
        "components": {"schemas": {"Thing": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"type": "string", "description": "its name"},
                "state": {"type": "string", "enum": ["new", "old"]},
            },
        }}},
    })
}

#[test]
fn what_is_added_breaks_no_client() {
    let added: [(&str, Value); 9] = [
        ("/paths/~1more", json!({"get": {}})),
        ("/paths/~1things/post", json!({"requestBody": {"required": true}})),
        (
            "/paths/~1things/get/parameters",
            json!([{"name": "more", "in": "query", "required": false}]),
        ),
        ("/paths/~1things/get/responses/404", json!({"description": "none"})),
        ("/paths/~1things/get/deprecated", json!(true)),
        (
            "/components/schemas/Thing/properties/parameters",
            json!({"type": "object"}),
        ),
        (
            "/components/schemas/Thing/properties/name/description",
            json!("other words"),
        ),
        (
            "/components/schemas/Thing/properties/state/enum",
            json!(["old", "new", "newest"]),
        ),
        ("/info/version", json!("2")),
    ];
    for (place, value) in added {
        assert_eq!(
            breaks(&example(), &with(place, Some(value))),
            Vec::<String>::new(),
            "{place}"
        );
    }
}

#[test]
fn what_a_client_relies_on_may_not_change() {
    let changed: [(&str, Option<Value>); 16] = [
        ("/paths/~1things", None),
        ("/paths/~1things/get/operationId", Some(json!("other"))),
        ("/paths/~1things/get/responses/200", None),
        (
            "/paths/~1things/get/parameters",
            Some(json!([{"name": "more", "in": "query", "required": true}])),
        ),
        ("/paths/~1things/get/requestBody", Some(json!({"required": true}))),
        ("/paths/~1things/get/security", Some(json!([{"key": []}]))),
        ("/paths/~1things~1{name}/get/parameters/1", None),
        ("/paths/~1things~1{name}/get/parameters/1/required", Some(json!(true))),
        (
            "/paths/~1things~1{name}/get/parameters/1/schema/type",
            Some(json!("string")),
        ),
        ("/components/schemas/Thing/properties/state", None),
        ("/components/schemas/Thing/properties/state/enum", Some(json!(["new"]))),
        ("/components/schemas/Thing/properties/name/maxLength", Some(json!(9))),
        ("/components/schemas/Thing/additionalProperties", Some(json!(false))),
        ("/paths/~1things~1{name}/get/security", Some(json!([{"key": ["more"]}]))),
        ("/components/schemas/Thing/required", Some(json!(["name", "state"]))),
        ("/components/schemas/Thing/required", None),
    ];
    for (place, value) in changed {
        assert_eq!(breaks(&example(), &with(place, value)).len(), 1, "{place}");
    }
}

/// The example with another value at a place, or without it.
fn with(place: &str, value: Option<Value>) -> Value {
    let mut document = example();
    let (above, name) = place.rsplit_once('/').unwrap();
    let name = name.replace("~1", "/");
    match (document.pointer_mut(above).unwrap(), value) {
        (Value::Object(fields), Some(value)) => drop(fields.insert(name, value)),
        (Value::Object(fields), None) => drop(fields.remove(&name).unwrap()),
        (Value::Array(items), None) => drop(items.remove(name.parse().unwrap())),
        _ => panic!("{place}"),
    }
    document
}

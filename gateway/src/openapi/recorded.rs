//! The document against that of the last release: whoever wrote a client for it can go on.
//!
//! What is recorded is the reference page too, so it is also kept up to date: `REKINDLE_UPDATE_DOCS=1` writes it anew,
//! unless a client of before could not go on.

use std::path::PathBuf;

use serde_json::{Map, Value};

const UPDATE: &str = "REKINDLE_UPDATE_DOCS";

/// What the document says to people alone.
const TEXTS: [&str; 5] = ["description", "summary", "tags", "version", "operationId"];

/// What a client of the old document could not do any more, each with its place.
fn broken(place: &str, old: &Value, new: &Value, found: &mut Vec<String>) {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            fields(place, old, new, found);
        }
        (Value::Array(old), Value::Array(new)) => items(place, old, new, found),
        _ if old == new => {}
        _ => found.push(format!("{place} was {old} and is {new}")),
    }
}

fn fields(place: &str, old: &Map<String, Value>, new: &Map<String, Value>, found: &mut Vec<String>) {
    let texts_are_properties = place.ends_with("/properties");
    for (name, value) in old {
        if TEXTS.contains(&name.as_str()) && !texts_are_properties {
            continue;
        }
        let place = format!("{place}/{name}");
        match new.get(name) {
            Some(now) if name == "required" && value.is_array() => same_set(&place, value, now, found),
            Some(now) => broken(&place, value, now, found),
            None => found.push(format!("{place} is gone")),
        }
    }
    // A schema or an operation that asked for nothing may not begin to.
    let asks = |what: &str| new.contains_key(what) && !old.contains_key(what);
    if asks("required") && !texts_are_properties {
        found.push(format!("{place} requires what it did not"));
    }
    if asks("parameters") {
        items(
            &format!("{place}/parameters"),
            &[],
            new["parameters"].as_array().unwrap(),
            found,
        );
    }
}

/// Fields that answers always have and requests must have: neither more nor less, as one schema may be of both.
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

/// Parameters are told by name and place; other lists keep each of their items.
fn items(place: &str, old: &[Value], new: &[Value], found: &mut Vec<String>) {
    let name = |item: &Value| match (&item["name"], &item["in"]) {
        (Value::String(name), Value::String(place)) => Some(format!("{place} {name}")),
        _ => None,
    };
    for item in old {
        let same = |other: &&Value| match name(item) {
            Some(named) => name(other) == Some(named),
            None => {
                let mut differences = Vec::new();
                broken("", item, other, &mut differences);
                differences.is_empty()
            }
        };
        let what = name(item).unwrap_or_else(|| item.to_string());
        match new.iter().find(same) {
            Some(other) => broken(&format!("{place}/{what}"), item, other, found),
            None => found.push(format!("{place} has {what} no more")),
        }
    }
    for item in new.iter().filter(|item| item["required"] == true) {
        let named = name(item);
        if !old.iter().any(|other| name(other) == named) {
            found.push(format!("{place} requires {}", named.unwrap_or_default()));
        }
    }
}

#[test]
fn a_client_of_the_last_release_can_go_on() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/openapi.json");
    let text = serde_json::to_string_pretty(&super::document()).unwrap() + "\n";
    let before = std::fs::read_to_string(&path).unwrap();
    let old: Value = serde_json::from_str(&before).unwrap();
    let new: Value = serde_json::from_str(&text).unwrap();
    let mut found = Vec::new();
    broken("", &old, &new, &mut found);
    assert!(found.is_empty(), "a client of before cannot go on: {found:#?}");
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&path, &text).unwrap();
    } else {
        assert!(
            before == text,
            "docs/reference/openapi.json is not what is served: run with {UPDATE}=1"
        );
    }
}

#[test]
fn what_a_client_relies_on_is_told_from_what_is_added() {
    let old: Value = serde_json::to_value(super::document()).unwrap();
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut new = old.clone();
        change(&mut new);
        let mut found = Vec::new();
        broken("", &old, &new, &mut found);
        found
    };
    let functions = |document: &mut Value| document["paths"]["/v1/functions"]["get"].take();
    let schema = |document: &mut Value| document["components"]["schemas"]["VersionInfo"].take();
    // More is no break, and neither are other words.
    let added = changed(&|document| {
        document["paths"]["/v1/more"] = serde_json::json!({"get": {}});
        document["info"]["description"] = "other words".into();
        let mut version = schema(document);
        version["properties"]["more"] = serde_json::json!({"type": "string"});
        document["components"]["schemas"]["VersionInfo"] = version;
        let mut get = functions(document);
        let more = serde_json::json!({"name": "more", "in": "query", "required": false});
        match get["parameters"].as_array_mut() {
            Some(all) => all.push(more),
            None => get["parameters"] = Value::Array(vec![more]),
        }
        document["paths"]["/v1/functions"]["get"] = get;
    });
    assert_eq!(added, Vec::<String>::new());
    let breaks: [&dyn Fn(&mut Value); 6] = [
        &|document| drop(document["paths"].as_object_mut().unwrap().remove("/v1/functions")),
        &|document| {
            let mut version = schema(document);
            version["properties"].as_object_mut().unwrap().remove("phases");
            document["components"]["schemas"]["VersionInfo"] = version;
        },
        &|document| {
            let mut version = schema(document);
            version["properties"]["version"] = serde_json::json!({"type": "boolean"});
            document["components"]["schemas"]["VersionInfo"] = version;
        },
        &|document| {
            let mut version = schema(document);
            version["required"].as_array_mut().unwrap().push("phases".into());
            document["components"]["schemas"]["VersionInfo"] = version;
        },
        &|document| {
            let mut get = functions(document);
            get["parameters"] = serde_json::json!([{"name": "more", "in": "query", "required": true}]);
            document["paths"]["/v1/functions"]["get"] = get;
        },
        &|document| {
            let mut get = functions(document);
            get["responses"].as_object_mut().unwrap().remove("200");
            document["paths"]["/v1/functions"]["get"] = get;
        },
    ];
    for (number, change) in breaks.into_iter().enumerate() {
        assert_eq!(changed(change).len(), 1, "break {number}");
    }
}

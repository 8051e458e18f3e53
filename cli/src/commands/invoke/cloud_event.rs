//! CloudEvents 1.0 over HTTP: the message of `fn invoke --cloudevent`.

use std::time::SystemTime;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value};

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const STRUCTURED: HeaderValue = HeaderValue::from_static("application/cloudevents+json");

/// An event to be sent.
pub(super) struct CloudEvent {
    attributes: [(&'static str, String); 5],
    data: Option<Vec<u8>>,
}

impl CloudEvent {
    /// An event that happens now.
    pub(super) fn new(kind: &str, source: &str, data: Option<Vec<u8>>) -> Self {
        Self {
            attributes: [
                ("specversion", "1.0".to_owned()),
                ("type", kind.to_owned()),
                ("source", source.to_owned()),
                ("id", format!("{:032x}", rand::random::<u128>())),
                ("time", humantime::format_rfc3339_millis(SystemTime::now()).to_string()),
            ],
            data,
        }
    }

    /// Its body in binary mode, with its attributes among the headers.
    pub(super) fn binary(self, headers: &mut HeaderMap) -> Result<Vec<u8>> {
        for (name, value) in &self.attributes {
            let header = HeaderName::try_from(format!("ce-{name}")).context("an attribute cannot be sent")?;
            let value = HeaderValue::try_from(encoded(value)).context("an attribute cannot be sent")?;
            headers.insert(header, value);
        }
        if self.data.is_some() && !headers.contains_key(CONTENT_TYPE) {
            headers.insert(CONTENT_TYPE, JSON);
        }
        Ok(self.data.unwrap_or_default())
    }

    /// Its body in structured mode.
    pub(super) fn structured(self, headers: &mut HeaderMap) -> Result<Vec<u8>> {
        let attributes = self.attributes.into_iter();
        let mut event: Map<_, _> = attributes
            .map(|(name, value)| (name.to_owned(), value.into()))
            .collect();
        let kind = headers.insert(CONTENT_TYPE, STRUCTURED);
        let kind = kind
            .as_ref()
            .map_or("application/json", |kind| kind.to_str().unwrap_or_default());
        if let Some(data) = self.data {
            event.insert("datacontenttype".to_owned(), kind.into());
            let is_json = kind
                .split(';')
                .next()
                .is_some_and(|kind| kind == "application/json" || kind.ends_with("+json"));
            match String::from_utf8(data) {
                Ok(text) if is_json => {
                    let data: Value = serde_json::from_str(&text)
                        .context("the body is not JSON: change it, or name its type with -H 'content-type: …'")?;
                    event.insert("data".to_owned(), data);
                }
                Ok(text) => drop(event.insert("data".to_owned(), text.into())),
                Err(bytes) => drop(event.insert("data_base64".to_owned(), STANDARD.encode(bytes.as_bytes()).into())),
            }
        }
        serde_json::to_vec(&event).context("the event cannot be sent")
    }
}

/// An attribute's value as it is in a header: printable ASCII stays, but for spaces, double quotes and percent signs.
fn encoded(value: &str) -> String {
    let encode = |byte: u8| match byte {
        b'"' | b'%' => format!("%{byte:02X}"),
        0x21..=0x7e => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    value.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(data: Option<&[u8]>) -> CloudEvent {
        CloudEvent::new("order.made", "/shop grün", data.map(<[u8]>::to_vec))
    }

    #[test]
    fn in_binary_mode_attributes_are_headers() {
        let mut headers = HeaderMap::new();
        let body = event(Some(b"{\"id\":7}")).binary(&mut headers).unwrap();
        assert_eq!(body, b"{\"id\":7}");
        for (name, value) in [
            ("ce-specversion", "1.0"),
            ("ce-type", "order.made"),
            ("ce-source", "/shop%20gr%C3%BCn"),
            ("content-type", "application/json"),
        ] {
            assert_eq!(headers[name], value);
        }
        assert!(headers.contains_key("ce-id") && headers.contains_key("ce-time"));
        let mut headers = HeaderMap::new();
        assert!(event(None).binary(&mut headers).unwrap().is_empty() && !headers.contains_key(CONTENT_TYPE));
    }

    #[test]
    fn in_structured_mode_the_body_has_all_of_it() {
        for (kind, data, name, expected) in [
            (None, &b"{\"id\":7}"[..], "data", serde_json::json!({"id": 7})),
            (Some("text/plain"), b"hello", "data", "hello".into()),
            (Some("image/png"), b"\x00\xff", "data_base64", "AP8=".into()),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(kind) = kind {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
            }
            let body = event(Some(data)).structured(&mut headers).unwrap();
            let sent: Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(headers[CONTENT_TYPE], STRUCTURED);
            assert_eq!((&sent["source"], &sent[name]), (&Value::from("/shop grün"), &expected));
        }
        assert!(event(Some(b"{")).structured(&mut HeaderMap::new()).is_err());
    }
}

//! Lists of keys as objects: what a publisher relies on, and what a collection may be deleting. Pure.
//!
//! ```text
//! {"rekindle_names":1,"names":["chunks/…","layers/….tar.zst"]}
//! ```

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The version of the format that this build reads and writes.
const FORMAT: u32 = 1;

/// The bytes are not a list that this build can read. Readers must not treat such a list as empty.
#[derive(Debug, thiserror::Error)]
pub enum NamesError {
    /// Not JSON, or unexpected fields.
    #[error("list of names does not parse")]
    Json(#[from] serde_json::Error),
    /// Another version.
    #[error("list of names has format {0}, this build reads {FORMAT}: use the newest build everywhere")]
    Format(u32),
}

#[derive(Serialize, Deserialize)]
struct Names<T> {
    rekindle_names: u32,
    names: T,
}

pub(super) fn encode<'a>(names: impl IntoIterator<Item = &'a String>) -> Result<Bytes, NamesError> {
    let names: Vec<&String> = names.into_iter().collect();
    let list = Names {
        rekindle_names: FORMAT,
        names,
    };
    Ok(serde_json::to_vec(&list)?.into())
}

pub(super) fn parse(bytes: &[u8]) -> Result<Vec<String>, NamesError> {
    let list: Names<Vec<String>> = serde_json::from_slice(bytes)?;
    if list.rekindle_names == FORMAT {
        Ok(list.names)
    } else {
        Err(NamesError::Format(list.rekindle_names))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_reads_back_and_what_is_none_is_refused() {
        let names = vec!["chunks/a".to_owned(), "layers/b".to_owned()];
        assert_eq!(parse(&encode(&names).unwrap()).unwrap(), names);
        assert!(parse(&encode(&[]).unwrap()).unwrap().is_empty());
        for bad in [
            "",
            "[]",
            r#"{"rekindle_names":1}"#,
            r#"{"rekindle_names":2,"names":[]}"#,
        ] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}

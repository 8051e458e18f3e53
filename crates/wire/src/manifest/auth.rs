//! Who may invoke a function.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What the caller of a function must show.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Auth {
    /// Nothing: anybody may invoke it.
    #[default]
    None,
    /// A key of the API with the role invoker.
    Key,
}

impl Auth {
    /// Whether it is what a function has unless it says otherwise.
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Manifest, parse};
    use super::*;

    const START: &str = "name = \"f\"\nruntime = \"python\"\nentry = \"m.h\"\n";

    #[test]
    fn anybody_may_invoke_a_function_that_asks_for_no_key() {
        for (line, auth) in [
            ("", Auth::None),
            ("auth = \"none\"", Auth::None),
            ("auth = \"key\"", Auth::Key),
        ] {
            assert_eq!(parse(&format!("{START}{line}")).unwrap().auth, auth, "{line}");
        }
        let error = parse(&format!("{START}auth = \"jwt\"")).unwrap_err();
        assert!(
            error.message.contains("\"none\" (the default) or \"key\"") && error.line == Some(4),
            "{error}"
        );
        assert!(Auth::Key > Auth::None);
    }

    #[test]
    fn a_manifest_without_it_reads_and_writes_as_before() {
        let plain = parse(START).unwrap();
        let text = serde_json::to_string(&plain).unwrap();
        assert!(!text.contains("auth"));
        assert_eq!(serde_json::from_str::<Manifest>(&text).unwrap(), plain);
    }
}

//! Who may invoke a function.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What the caller of a function must show, from least to most.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Auth {
    /// Nothing: anybody may invoke it.
    #[default]
    None,
    /// A token of its issuer, or a key as below.
    Jwt,
    /// A key of the API with the role invoker.
    Key,
}

impl Auth {
    /// Whether it is what a function has unless it says otherwise.
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// `[jwt]` in `fn.toml`: the tokens (RFC 7519) that callers show.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
pub struct TokenRule {
    /// The claim `iss`.
    pub issuer: String,
    /// The claim `aud` has one of these.
    pub audience: Vec<String>,
    /// Further claims, by name. The claim is this text, or a list that has it, or words of which it is one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub claims: BTreeMap<String, String>,
}

/// Who may invoke a function without what `auth` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Allowed {
    /// Functions of the same namespace.
    Functions,
}

#[cfg(test)]
mod tests {
    use super::super::{FunctionConfig, parse};
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
        let error = parse(&format!("{START}auth = \"oauth\"")).unwrap_err();
        assert!(
            error.message.contains("\"none\" (the default), \"key\" or \"jwt\"") && error.line == Some(4),
            "{error}"
        );
        assert!(Auth::Key > Auth::Jwt && Auth::Jwt > Auth::None);
    }

    #[test]
    fn functions_are_allowed_where_others_need_a_key() {
        let allow = |lines: &str| parse(&format!("{START}{lines}"));
        assert_eq!(allow("auth = \"key\"").unwrap().allow, []);
        let both = allow("auth = \"key\"\nallow = [\"functions\"]").unwrap();
        assert_eq!(both.allow, [Allowed::Functions]);
        for (lines, said) in [
            ("allow = [\"functions\"]", "auth"),
            ("auth = \"key\"\nallow = [\"everybody\"]", "allow = [\"functions\"]"),
            ("auth = \"key\"\nallow = []", "allow = [\"functions\"]"),
        ] {
            let error = allow(lines).unwrap_err();
            assert!(error.message.contains(said) && error.line.is_some(), "{lines}: {error}");
        }
    }

    #[test]
    fn a_token_has_an_issuer_and_an_audience() {
        let text = format!(
            "{START}auth = \"jwt\"\n[jwt]\nissuer = \"https://id.example.com/\"\naudience = \"orders\"\nclaims = {{ \
             scope = \"write\" }}\n"
        );
        let config = parse(&text).unwrap();
        let rule = TokenRule {
            issuer: "https://id.example.com/".to_owned(),
            audience: vec!["orders".to_owned()],
            claims: BTreeMap::from([("scope".to_owned(), "write".to_owned())]),
        };
        assert_eq!((config.auth, config.jwt), (Auth::Jwt, Some(rule)));
        let several = text.replace("\"orders\"", "[\"orders\", \"shop\"]");
        assert_eq!(parse(&several).unwrap().jwt.unwrap().audience, ["orders", "shop"]);
    }

    #[test]
    fn what_is_wrong_with_tokens_is_told_with_the_remedy() {
        let rule = "[jwt]\nissuer = \"https://id.example.com\"\naudience = \"a\"\n";
        for (text, said) in [
            ("auth = \"jwt\"", "needs [jwt]"),
            (rule, "auth = \"jwt\""),
            (&format!("auth = \"key\"\n{rule}"), "auth = \"jwt\""),
            (
                &format!("auth = \"jwt\"\n{}", rule.replace("https://", "")),
                "an address such as",
            ),
            (&format!("auth = \"jwt\"\n{}", rule.replace("\"a\"", "[]")), "audience"),
            (
                &format!("auth = \"jwt\"\n{}", rule.replace("\"a\"", "\"\"")),
                "audience",
            ),
            (
                &format!("auth = \"jwt\"\n{rule}claims = {{ iss = \"x\" }}"),
                "checked anyway",
            ),
        ] {
            let error = parse(&format!("{START}{text}")).unwrap_err();
            assert!(error.message.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn a_config_without_it_reads_and_writes_as_before() {
        let plain = parse(START).unwrap();
        let text = serde_json::to_string(&plain).unwrap();
        assert!(!text.contains("auth") && !text.contains("jwt") && !text.contains("cors"));
        assert_eq!(serde_json::from_str::<FunctionConfig>(&text).unwrap(), plain);
    }
}

//! `[cors]` in `fn.toml`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Which pages of other origins may call a function from a browser. The gateway answers for it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
pub struct Cors {
    /// Origins such as `https://app.example.com`, or `*` for all.
    pub origins: Vec<String>,
    /// Methods, or `*` for all.
    pub methods: Vec<String>,
    /// Headers that a page may send, or `*` for all but `authorization`.
    pub headers: Vec<String>,
    /// Headers of an answer that a page may read, or `*` for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expose: Vec<String>,
    /// Whether a page may send cookies and read what comes back.
    #[serde(default)]
    pub credentials: bool,
    /// How long a browser remembers what is allowed, in milliseconds.
    pub max_age_ms: u64,
}

impl Cors {
    /// What stands for all of a kind.
    pub const ALL: &str = "*";

    /// Whether anything is allowed as a whole, which browsers refuse together with credentials.
    pub fn has_all(&self) -> bool {
        let mut lists = [&self.origins, &self.methods, &self.headers, &self.expose].into_iter();
        lists.any(|list| list.iter().any(|entry| entry == Self::ALL))
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;

    const START: &str = "name = \"f\"\nruntime = \"python\"\nentry = \"m.h\"\n";

    #[test]
    fn a_page_of_an_origin_may_send_what_forms_and_json_need() {
        let text = format!("{START}[cors]\norigins = [\"https://app.example.com\", \"http://localhost:3000\"]\n");
        let cors = parse(&text).unwrap().cors.unwrap();
        assert_eq!(cors.methods, ["GET", "HEAD", "POST"]);
        assert_eq!(cors.headers, ["authorization", "content-type"]);
        assert_eq!((cors.credentials, cors.max_age_ms), (false, 600_000));
        assert!(!cors.has_all());
        let text = format!("{START}[cors]\norigins = [\"*\"]\nmethods = [\"PUT\"]\nmax_age = \"1h\"\n");
        let cors = parse(&text).unwrap().cors.unwrap();
        assert!(cors.has_all() && cors.methods == ["PUT"] && cors.max_age_ms == 3_600_000);
    }

    #[test]
    fn what_no_browser_would_take_is_refused_with_the_remedy() {
        for (lines, said) in [
            ("methods = [\"GET\"]", "origins"),
            ("origins = []", "origins"),
            ("origins = [\"app.example.com\"]", "https://app.example.com"),
            ("origins = [\"https://app.example.com/\"]", "without a path"),
            ("origins = [\"https://app.example.com/page\"]", "without a path"),
            ("origins = [\"https://*.example.com\"]", "each by itself"),
            ("origins = [\"null\"]", "each by itself"),
            ("origins = [\"*\"]\ncredentials = true", "credentials"),
            (
                "origins = [\"https://a.example\"]\nheaders = [\"*\"]\ncredentials = true",
                "credentials",
            ),
            ("origins = [\"*\"]\nmethods = [\"G T\"]", "method"),
            ("origins = [\"*\"]\nheaders = [\"a b\"]", "header"),
            ("origins = [\"*\"]\nexpose = [\"\"]", "header"),
            ("origins = [\"*\"]\nmax_age = \"2d\"", "max_age"),
            ("origins = [\"*\"]\nage = 1", "unknown field"),
        ] {
            let error = parse(&format!("{START}[cors]\n{lines}\n")).unwrap_err();
            assert!(error.message.contains(said), "{lines}: {error}");
        }
    }
}

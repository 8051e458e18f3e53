//! The version of HTTP that a function speaks.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The version of HTTP in which the platform speaks to a function, whatever its clients speak.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// HTTP/1.1.
    #[default]
    Http1,
    /// HTTP/2 in clear, with prior knowledge, as gRPC's servers speak it.
    H2c,
}

impl Protocol {
    /// Whether it is the one that a function has unless it says otherwise.
    pub fn is_http1(&self) -> bool {
        *self == Self::Http1
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FunctionConfig, parse};
    use super::*;

    const SERVER: &str = "name = \"f\"\nruntime = \"http\"\ncommand = [\"x\"]\n";

    #[test]
    fn servers_and_images_may_speak_http2() {
        let h2c = parse(&format!("{SERVER}protocol = \"h2c\"")).unwrap();
        assert_eq!(h2c.protocol, Protocol::H2c);
        let image = parse("name = \"f\"\nimage = \"./a.tar\"\nprotocol = \"h2c\"").unwrap();
        assert_eq!(image.protocol, Protocol::H2c);
        let plain = parse(&format!("{SERVER}protocol = \"http1\"")).unwrap();
        let text = serde_json::to_string(&plain).unwrap();
        assert!(!text.contains("protocol"), "{text}");
        assert_eq!(serde_json::from_str::<FunctionConfig>(&text).unwrap(), plain);
    }

    #[test]
    fn what_the_platform_serves_itself_has_no_choice() {
        for (text, why) in [
            (
                "runtime = \"python\"\nentry = \"main.handler\"\nprotocol = \"h2c\"",
                "images and runtime = \"http\" only",
            ),
            (
                "runtime = \"http\"\ninterface = \"lambda\"\nprotocol = \"h2c\"",
                "serves nothing",
            ),
            (
                "runtime = \"http\"\ncommand = [\"x\"]\nprotocol = \"h3\"",
                "use \"http1\" (the default) or \"h2c\"",
            ),
        ] {
            let error = parse(&format!("name = \"f\"\n{text}")).unwrap_err();
            assert!(error.message.contains(why) && error.line.is_some(), "{text}: {error}");
        }
    }
}

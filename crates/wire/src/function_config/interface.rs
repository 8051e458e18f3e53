//! How a function takes invocations.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The program in a function's folder that Lambda starts.
pub(super) const BOOTSTRAP: &str = "./bootstrap";

/// What a function and the platform speak. The runtimes `python` and `node` have HTTP, which their bootstraps serve.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Interface {
    /// It serves HTTP.
    #[default]
    Http,
    /// It asks AWS Lambda's runtime interface for events.
    Lambda,
}

impl Interface {
    /// Whether it is the one that a function has unless it says otherwise.
    pub fn is_http(&self) -> bool {
        *self == Self::Http
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FunctionConfig, FunctionConfigError, parse};
    use super::*;

    const START: &str = "name = \"f\"\ninterface = \"lambda\"\n";

    fn read(more: &str) -> Result<FunctionConfig, FunctionConfigError> {
        parse(&format!("{START}{more}\n"))
    }

    #[test]
    fn a_folder_has_a_bootstrap_or_a_command_and_an_image_its_own() {
        for (more, command) in [
            ("runtime = \"http\"", &["./bootstrap"][..]),
            ("runtime = \"http\"\ncommand = [\"./main\", \"-x\"]", &["./main", "-x"]),
            ("image = \"./a.tar\"", &[]),
            ("image = \"./a.tar\"\ncommand = [\"main\"]", &["main"]),
        ] {
            let config = read(&format!("{more}\nentry = \"com.example.Handler::handle\"")).unwrap();
            assert_eq!(
                (config.interface, config.command.as_slice()),
                (Interface::Lambda, &*strings(command))
            );
            assert_eq!(config.entry.as_deref(), Some("com.example.Handler::handle"));
        }
        assert_eq!(read("runtime = \"http\"").unwrap().entry, None);
    }

    fn strings(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn what_the_interface_has_no_place_for_is_refused() {
        for (more, why) in [
            ("runtime = \"python\"\nentry = \"main.handler\"", "remove the line"),
            ("runtime = \"http\"\nconcurrency = 2", "one invocation at a time"),
            ("runtime = \"http\"\nport = 9001", "serves nothing"),
            (
                "runtime = \"http\"\n[hooks]\nafter_restore = \"/a\"",
                "hooks of their own",
            ),
            ("runtime = \"http\"\nentry = \"a b\"", "is not a handler"),
            ("runtime = \"http\"\ncommand = []", "command"),
        ] {
            let error = read(more).unwrap_err();
            assert!(error.message.contains(why), "{more}: {error}");
        }
        let other = parse("name = \"f\"\nruntime = \"http\"\ninterface = \"grpc\"\ncommand = [\"x\"]").unwrap_err();
        assert!(
            other.message.contains("\"http\" (the default) or \"lambda\"") && other.line == Some(3),
            "{other}"
        );
    }

    #[test]
    fn a_config_without_it_reads_and_writes_as_before() {
        let plain = parse("name = \"f\"\nruntime = \"http\"\ncommand = [\"x\"]").unwrap();
        let text = serde_json::to_string(&plain).unwrap();
        assert!(!text.contains("interface"));
        assert_eq!(serde_json::from_str::<FunctionConfig>(&text).unwrap(), plain);
    }
}

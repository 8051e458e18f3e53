//! The root filesystems that the platform builds from packages, and the versions of interpreters in them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Runtime;

/// A root filesystem that the platform builds from packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Base {
    /// A C library and a shell.
    Base,
    /// `base` and CPython 3.11.
    #[serde(alias = "python3.11")]
    Python,
    /// CPython 3.13.
    #[serde(rename = "python3.13")]
    Python313,
    /// CPython 3.14.
    #[serde(rename = "python3.14")]
    Python314,
    /// `base` and Node.js 18.
    #[serde(alias = "node18")]
    Node,
    /// `base` and Node.js 20.
    Node20,
    /// `base` and Node.js 22.
    Node22,
    /// `base` and Node.js 24.
    Node24,
}

/// An interpreter of a root filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interpreter {
    /// The contract that its bootstrap keeps.
    pub runtime: Runtime,
    /// Its name and version, as its project writes them.
    pub version: &'static str,
    /// Its name in `fn.toml` that says the version.
    pub versioned: &'static str,
    /// The month until which its project repairs it, as `YYYY-MM`.
    pub supported_until: &'static str,
}

impl Interpreter {
    /// Whether its project still repairs it in a month (`YYYY-MM`).
    pub fn is_supported(&self, month: &str) -> bool {
        month <= self.supported_until
    }
}

impl Base {
    /// Every root filesystem.
    pub const ALL: [Self; 8] = [
        Self::Base,
        Self::Python,
        Self::Python313,
        Self::Python314,
        Self::Node,
        Self::Node20,
        Self::Node22,
        Self::Node24,
    ];

    /// Those that a set-up builds unless it is told which. A host need not have the others.
    pub const USUAL: [Self; 3] = [Self::Base, Self::Python, Self::Node];

    /// Its name in `fn.toml`, which is also that of its archive.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Python => "python",
            Self::Python313 => "python3.13",
            Self::Python314 => "python3.14",
            Self::Node => "node",
            Self::Node20 => "node20",
            Self::Node22 => "node22",
            Self::Node24 => "node24",
        }
    }

    /// Its interpreter, if it has one.
    pub fn interpreter(self) -> Option<Interpreter> {
        let (runtime, version, versioned, supported_until) = match self {
            Self::Base => return None,
            Self::Python => (Runtime::Python, "Python 3.11", "python3.11", "2027-10"),
            Self::Python313 => (Runtime::Python, "Python 3.13", "python3.13", "2029-10"),
            Self::Python314 => (Runtime::Python, "Python 3.14", "python3.14", "2030-10"),
            Self::Node => (Runtime::Node, "Node.js 18", "node18", "2025-04"),
            Self::Node20 => (Runtime::Node, "Node.js 20", "node20", "2026-04"),
            Self::Node22 => (Runtime::Node, "Node.js 22", "node22", "2027-04"),
            Self::Node24 => (Runtime::Node, "Node.js 24", "node24", "2028-04"),
        };
        Some(Interpreter {
            runtime,
            version,
            versioned,
            supported_until,
        })
    }

    /// The contract of its interpreter, if it has one.
    pub fn runtime(self) -> Option<Runtime> {
        self.interpreter().map(|interpreter| interpreter.runtime)
    }

    /// Where its functions look for programs, as in `PATH`: first where an installer puts those of packages.
    pub fn search_path(self) -> &'static str {
        match self.runtime() {
            Some(Runtime::Python) => "/app/.rekindle/python/bin:/usr/local/bin:/usr/bin:/bin",
            Some(Runtime::Node) => "/app/node_modules/.bin:/usr/local/bin:/usr/bin:/bin",
            Some(Runtime::Http) | None => "/usr/local/bin:/usr/bin:/bin",
        }
    }

    /// The root filesystem of a runtime with this name in `fn.toml`.
    pub fn of_runtime(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|base| {
            base.interpreter()
                .is_some_and(|interpreter| [base.as_str(), interpreter.versioned].contains(&name))
        })
    }
}

/// What a developer should write instead of the runtime of this `fn.toml`, if its name says no version, or its
/// interpreter's project repairs it no longer. `month` is the current one, as `YYYY-MM`.
pub fn advice(text: &str, month: &str) -> Option<String> {
    let config: toml::Table = toml::from_str(text).ok()?;
    let name = config.get("runtime")?.as_str()?;
    let is = Base::of_runtime(name)?.interpreter()?;
    let supported = is.is_supported(month);
    if supported && is.versioned == name {
        return None;
    }
    let newest = Base::ALL.into_iter().rev().filter_map(Base::interpreter);
    let newest = newest
        .filter(|newest| newest.runtime == is.runtime)
        .find(|newest| newest.is_supported(month));
    let instead = match newest {
        Some(newest) if !supported => newest.versioned,
        _ => is.versioned,
    };
    let verb = if supported { "repairs" } else { "repaired" };
    Some(format!(
        "runtime = \"{name}\" is {}, which its project {verb} until {}: write \"{instead}\", or another of `fn \
        runtimes list`",
        is.version, is.supported_until
    ))
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    fn written(runtime: &str) -> String {
        format!("name = \"hello\"\nruntime = \"{runtime}\"\nentry = \"main.handler\"\n")
    }

    #[test]
    fn each_version_of_a_runtime_has_a_name_and_a_root_filesystem() {
        for (name, runtime, base) in [
            ("python", Runtime::Python, "python"),
            ("python3.11", Runtime::Python, "python"),
            ("python3.13", Runtime::Python, "python3.13"),
            ("python3.14", Runtime::Python, "python3.14"),
            ("node", Runtime::Node, "node"),
            ("node18", Runtime::Node, "node"),
            ("node20", Runtime::Node, "node20"),
            ("node22", Runtime::Node, "node22"),
            ("node24", Runtime::Node, "node24"),
        ] {
            let config = parse(&written(name)).unwrap();
            assert_eq!((config.runtime, config.base.as_str()), (runtime, base), "{name}");
        }
        let refused = parse(&written("python3.12")).unwrap_err();
        assert_eq!(refused.line, Some(2));
        assert!(
            refused.message.contains("python3.11, python3.13, python3.14"),
            "{refused}"
        );
        assert!(parse(&written("base")).is_err());
    }

    #[test]
    fn a_root_filesystem_is_stored_by_its_name() {
        for base in Base::ALL {
            let json = serde_json::to_string(&base).unwrap();
            assert_eq!(json, format!("\"{}\"", base.as_str()));
            assert_eq!(serde_json::from_str::<Base>(&json).unwrap(), base);
            let config = format!(
                "name = \"hello\"\nruntime = \"http\"\ncommand = [\"serve\"]\nbase = \"{}\"\n",
                base.interpreter().map_or(base.as_str(), |is| is.versioned)
            );
            assert_eq!(parse(&config).unwrap().base, base);
        }
    }

    #[test]
    fn names_without_a_version_and_versions_that_are_not_repaired_are_advised_against() {
        let told = |name: &str| advice(&written(name), "2026-11");
        let python = told("python").unwrap();
        assert!(
            python.contains("Python 3.11, which its project repairs until 2027-10: write \"python3.11\""),
            "{python}"
        );
        for name in ["node", "node18"] {
            let node = told(name).unwrap();
            assert!(node.contains("repaired until 2025-04: write \"node24\""), "{node}");
        }
        for name in ["python3.11", "python3.14", "node22", "node24", "http"] {
            assert_eq!(told(name), None, "{name}");
        }
        // In its last month it is repaired; where none is, the version stays.
        assert_eq!(advice(&written("node22"), "2027-04"), None);
        let late = advice(&written("node24"), "2040-01").unwrap();
        assert!(late.contains("write \"node24\""), "{late}");
    }
}

//! Lock files that builds do not read: pip installs `requirements.txt`, npm what `package-lock.json` has.

use std::path::Path;

use rekindle_wire::function_config::{FunctionConfig, Runtime};

/// Lock files of Python's tools, and what makes a `requirements.txt` of each.
const PYTHON: [(&str, &str); 4] = [
    (
        "uv.lock",
        "uv export --frozen --no-dev --no-emit-project -o requirements.txt",
    ),
    ("poetry.lock", "poetry export -o requirements.txt"),
    ("pdm.lock", "pdm export --prod -o requirements.txt"),
    ("Pipfile.lock", "pipenv requirements > requirements.txt"),
];
/// Lock files of other tools than npm.
const NODE: [&str; 4] = ["pnpm-lock.yaml", "yarn.lock", "bun.lock", "bun.lockb"];

/// What to do so that the versions of a lock file in the folder are installed, if the build would not read it.
pub(super) fn advice(folder: &Path, config: &FunctionConfig) -> Option<String> {
    if config.image.is_some() {
        return None;
    }
    let has = |name: &str| folder.join(name).is_file();
    match config.base.runtime()? {
        Runtime::Python if !has("requirements.txt") => {
            let (lock, export) = PYTHON.into_iter().find(|(lock, _)| has(lock))?;
            Some(format!(
                "{lock} is not installed from: write command = \"{export}\" below [build] in fn.toml, or run it \
                 yourself"
            ))
        }
        Runtime::Node if has("package.json") && !has("package-lock.json") && !has("npm-shrinkwrap.json") => {
            let lock = NODE.into_iter().find(|lock| has(lock))?;
            Some(format!(
                "npm does not read {lock}, and chooses versions itself: make a package-lock.json with `npm install \
                --package-lock-only`, or upload node_modules with a line \"!/node_modules/\" in .fnignore"
            ))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn told(runtime: &str, files: &[&str]) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            fs::write(folder.path().join(file), "").unwrap();
        }
        let start = if runtime == "http" {
            "command = [\"x\"]"
        } else {
            "entry = \"main.handler\""
        };
        let text = format!("name = \"f\"\nruntime = \"{runtime}\"\n{start}\n");
        advice(folder.path(), &rekindle_wire::function_config::parse(&text).unwrap())
    }

    #[test]
    fn a_lock_file_that_builds_do_not_read_is_told_with_what_to_do() {
        let python = told("python3.13", &["pyproject.toml", "uv.lock"]).unwrap();
        assert!(python.contains("uv.lock") && python.contains("uv export"), "{python}");
        let node = told("node24", &["package.json", "pnpm-lock.yaml"]).unwrap();
        assert!(node.contains("npm does not read pnpm-lock.yaml"), "{node}");
    }

    #[test]
    fn nothing_is_told_where_builds_read_a_list_or_install_nothing() {
        for (runtime, files) in [
            ("python3.13", ["uv.lock", "requirements.txt"].as_slice()),
            ("python3.13", &["pyproject.toml"]),
            ("node24", &["package.json", "yarn.lock", "package-lock.json"]),
            ("node24", &["yarn.lock"]),
            ("http", &["uv.lock", "package.json", "yarn.lock"]),
        ] {
            assert_eq!(told(runtime, files), None, "{files:?}");
        }
    }
}

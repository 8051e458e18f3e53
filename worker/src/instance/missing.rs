//! Shared libraries that a function's program needs and its root filesystem lacks. Names the library from the loader's
//! message, and says where to get it.

use rekindle_snapshotter::Store;
use rekindle_wire::function_config::{Base, FunctionConfig, Runtime};

use crate::layers::runtime_alias;

/// What loaders write after a library's name: glibc's, also through Python, Node.js and JVMs.
const NOT_FOUND: &str = ": cannot open shared object file";
/// What musl's loader writes before the name.
const NOT_FOUND_BY_MUSL: &str = "Error loading shared library ";

/// Returns the first library that one of these lines reports as missing.
pub(crate) fn library<'a>(lines: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let named = |line: &'a str| {
        let name = match line.split_once(NOT_FOUND) {
            Some((before, _)) => before.rsplit(|c: char| c.is_whitespace()).next()?,
            None => line.split_once(NOT_FOUND_BY_MUSL)?.1.split(':').next()?,
        };
        let name = name.rsplit('/').next()?;
        let usable = |c: char| c.is_ascii_alphanumeric() || "._+-".contains(c);
        (name.contains(".so") && name.chars().all(usable)).then_some(name)
    };
    lines.into_iter().find_map(named)
}

/// Returns advice on how to provide the library.
pub(crate) async fn advice(store: &Store, config: &FunctionConfig, library: &str) -> String {
    let mut others = Vec::new();
    if config.runtime == Runtime::Http {
        for base in Base::USUAL.into_iter().filter(|base| *base != config.base) {
            if has(store, base, library).await {
                others.push(format!("set base = \"{}\", which has it", base.as_str()));
            }
        }
    }
    others.push(format!(
        "put it into the folder, as lib/{library}, and LD_LIBRARY_PATH = \"/app/lib\" under [env] of fn.toml"
    ));
    format!("it lacks the shared library {library}: {}", others.join(", or "))
}

/// Returns whether a root filesystem has the package that Debian names after the library. Counts as no if the root
/// filesystem cannot be read.
async fn has(store: &Store, base: Base, library: &str) -> bool {
    let alias = runtime_alias(store, base.as_str()).await;
    alias.is_ok_and(|alias| packages(library).iter().any(|name| alias.packages.contains_key(name)))
}

/// Returns the names that Debian's rule gives the package of a library (Policy 8.1). `libz.so.1` is an exception and is
/// listed.
fn packages(library: &str) -> Vec<String> {
    let Some((name, number)) = library.split_once(".so.") else {
        return Vec::new();
    };
    let name = match name {
        "libz" => "zlib",
        name => name,
    };
    let name = name.to_lowercase().replace('_', "-");
    let number = number.split('.').next().unwrap_or_default();
    let suffixes = [number.to_owned(), format!("-{number}"), format!("{number}g")];
    suffixes.iter().map(|suffix| format!("{name}{suffix}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_that_a_loader_does_not_find_is_named_whoever_tells() {
        for (line, name) in [
            (
                "./server: error while loading shared libraries: libz.so.1: cannot open shared object file: No such",
                Some("libz.so.1"),
            ),
            (
                "ImportError: libgomp.so.1: cannot open shared object file: No such file or directory",
                Some("libgomp.so.1"),
            ),
            (
                "OSError: /app/lib/libx.so: cannot open shared object file: No such file or directory",
                Some("libx.so"),
            ),
            (
                "java.lang.UnsatisfiedLinkError: /app/a.so: libstdc++.so.6: cannot open shared object file: No such",
                Some("libstdc++.so.6"),
            ),
            (
                "Error loading shared library libgcc_s.so.1: No such file or directory (needed by /app/server)",
                Some("libgcc_s.so.1"),
            ),
            ("ValueError: cannot open shared object file", None),
            (
                "it said \u{1b}[1mlibx.so\u{1b}[0m: cannot open shared object file",
                None,
            ),
        ] {
            assert_eq!(library(["first", line, "last"]), name, "{line}");
        }
        assert_eq!(library([]), None);
    }

    #[test]
    fn packages_go_by_debian_s_rule() {
        assert!(packages("libsqlite3.so.0").contains(&"libsqlite3-0".to_owned()));
        assert!(packages("libuv.so.1").contains(&"libuv1".to_owned()));
        assert!(packages("libz.so.1").contains(&"zlib1g".to_owned()));
        assert!(packages("libgcc_s.so.1").contains(&"libgcc-s1".to_owned()));
        assert!(packages("libx.so").is_empty());
    }
}

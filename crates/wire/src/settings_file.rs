//! The settings file, `rekindle.toml`, which all programs of a host read.

use std::path::{Path, PathBuf};

use toml::Table;

/// Where it is, unless a program is told otherwise.
pub const PATH: &str = "/etc/rekindle/rekindle.toml";

/// A settings file is not TOML. Without the line itself, which may have a secret.
#[derive(Debug, thiserror::Error)]
#[error("the settings file {} is not TOML: line {line}: {message}", path.display())]
pub struct NotToml {
    path: PathBuf,
    /// Counted from 1.
    line: usize,
    message: String,
}

/// Parses its text. `path` is for the error.
///
/// # Errors
/// Returns an error that names the line.
pub fn parse(path: &Path, text: &str) -> Result<Table, NotToml> {
    text.parse().map_err(|error: toml::de::Error| {
        let end = error.span().map_or(0, |span| span.start.min(text.len()));
        NotToml {
            path: path.to_owned(),
            line: text.bytes().take(end).filter(|byte| *byte == b'\n').count() + 1,
            message: error.message().to_owned(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_line_without_what_is_in_it() {
        let error = parse(Path::new("a.toml"), "[scheduler]\nok = 1\ntoken = \"hush")
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("the settings file a.toml is not TOML: line 3: "),
            "{error}"
        );
        assert!(!error.contains("hush"), "{error}");
    }
}

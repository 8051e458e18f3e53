//! Reads a function's `requirements.txt` and accepts only packages: requirements by name, wheels and source archives by
//! URL or in the folder. Included files are merged, so that pip gets one list.

use std::fs;
use std::path::{Component, Path};

use rekindle_confined::is_control;

/// The file's name in a function's folder.
pub(super) const FILE_NAME: &str = "requirements.txt";
/// Maximum number of included files, and of their depth.
const INCLUDES_MAX: usize = 50;
/// Maximum size of one file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Why a line was rejected.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{file}, line {line}: {message}")]
pub struct RequirementsError {
    /// The file in the function's folder.
    pub file: String,
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong and what to write instead.
    pub message: String,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Requirements {
    /// Lines of the one requirements file.
    pub(super) lines: Vec<String>,
    /// Lines of the one constraints file.
    pub(super) constraints: Vec<String>,
    /// Wheels and source archives in the folder, relative to it.
    pub(super) archives: Vec<String>,
    installs: bool,
}

/// Reads `requirements.txt` in `app`. Returns `None` when it does not exist or lists no package.
pub(super) fn read(app: &Path) -> Result<Option<Requirements>, RequirementsError> {
    if !app.join(FILE_NAME).is_file() {
        return Ok(None);
    }
    let mut reader = Reader {
        app,
        all: Requirements::default(),
        included: 0,
    };
    reader.file(FILE_NAME, false)?;
    Ok(reader.all.installs.then_some(reader.all))
}

struct Reader<'a> {
    app: &'a Path,
    all: Requirements,
    included: usize,
}

struct SourceLocation<'a> {
    file: &'a str,
    line: usize,
}

impl SourceLocation<'_> {
    fn refuse<T>(&self, message: impl Into<String>) -> Result<T, RequirementsError> {
        Err(RequirementsError {
            file: self.file.to_owned(),
            line: self.line,
            message: message.into(),
        })
    }
}

impl Reader<'_> {
    fn file(&mut self, name: &str, constraints: bool) -> Result<(), RequirementsError> {
        let path = self.app.join(name);
        let start = SourceLocation { file: name, line: 1 };
        if fs::metadata(&path).is_ok_and(|m| m.len() > FILE_BYTES_MAX) {
            return start.refuse("the file is larger than 1 MiB: it is no list of packages");
        }
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) => return start.refuse(format!("cannot be read: {e}")),
        };
        let mut logical = String::new();
        let mut begun = 1;
        for (index, raw) in text.trim_start_matches('\u{feff}').lines().enumerate() {
            if logical.is_empty() {
                begun = index + 1;
            }
            let raw = without_comment(raw);
            if let Some(part) = raw.strip_suffix('\\') {
                logical.push_str(part);
                logical.push(' ');
                continue;
            }
            logical.push_str(raw);
            let line = std::mem::take(&mut logical);
            self.line(
                line.trim(),
                &SourceLocation {
                    file: name,
                    line: begun,
                },
                constraints,
            )?;
        }
        self.line(
            logical.trim(),
            &SourceLocation {
                file: name,
                line: begun,
            },
            constraints,
        )
    }

    fn line(&mut self, line: &str, at: &SourceLocation<'_>, constraints: bool) -> Result<(), RequirementsError> {
        if line.is_empty() {
            return Ok(());
        }
        // Python ends a line at some of these, and would read another line than the one that is checked here.
        if line.chars().any(|c| is_control(c) && c != '\t') {
            let shown: String = line.escape_debug().take(200).collect();
            return at.refuse(format!("\"{shown}\" has a control character: remove it"));
        }
        if line.contains("${") {
            // pip would substitute variables of the worker's environment.
            return at.refuse("variables are not filled in here: write the value itself");
        }
        if line.starts_with('-') {
            return self.option(line, at, constraints);
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let options = words.iter().position(|w| w.starts_with('-')).unwrap_or(words.len());
        if words[options..].iter().any(|w| !w.starts_with("--hash=")) {
            return at.refuse("only --hash=… may stand behind a requirement: remove the other options");
        }
        self.requirement(&words[..options].join(" "), at)?;
        if constraints {
            self.all.constraints.push(line.to_owned());
        } else {
            self.all.lines.push(line.to_owned());
            self.all.installs = true;
        }
        Ok(())
    }

    fn option(&mut self, line: &str, at: &SourceLocation<'_>, constraints: bool) -> Result<(), RequirementsError> {
        let split = line.find(['=', ' ', '\t']).unwrap_or(line.len());
        let (name, mut value) = (&line[..split], line.get(split + 1..).unwrap_or_default().trim());
        let attached = ["-r", "-c", "-i"]
            .into_iter()
            .find(|o| name.starts_with(o) && name.len() > 2);
        let name = match attached {
            Some(short) => {
                value = line[2..].trim();
                short
            }
            None => name,
        };
        match name {
            "-r" | "--requirement" | "-c" | "--constraint" => {
                self.included += 1;
                if self.included > INCLUDES_MAX {
                    return at.refuse("files include each other too often: remove the circle");
                }
                let from = Path::new(at.file).parent().unwrap_or(Path::new(""));
                let Some(file) = relative(from, value).filter(|f| self.app.join(f).is_file()) else {
                    return at.refuse(format!(
                        "\"{value}\" is not a file in the function's folder: add it or remove the \
                        line"
                    ));
                };
                self.file(&file, constraints || name == "-c" || name == "--constraint")
            }
            "-i" | "--index-url" | "--extra-index-url"
                if value.starts_with("https://") || value.starts_with("http://") =>
            {
                let long = if name == "-i" { "--index-url" } else { name };
                self.all.lines.push(format!("{long} {value}"));
                Ok(())
            }
            "--pre" | "--prefer-binary" | "--require-hashes" | "--no-index" if value.is_empty() => {
                self.all.lines.push(name.to_owned());
                Ok(())
            }
            "--only-binary" | "--no-binary" if !value.is_empty() => {
                self.all.lines.push(format!("{name} {value}"));
                Ok(())
            }
            "-e" | "--editable" => at.refuse(
                "a function's files do not change, so nothing is installed editable: copy the package into the \
                 function's folder",
            ),
            _ => at.refuse(format!(
                "option {name} is not supported: use --index-url, --extra-index-url, --pre, --require-hashes, -r or \
                 -c, or remove the line"
            )),
        }
    }

    fn requirement(&mut self, requirement: &str, at: &SourceLocation<'_>) -> Result<(), RequirementsError> {
        let before_marker = requirement.split(';').next().unwrap_or_default().trim();
        let location = match before_marker.split_once('@') {
            // `name @ URL`, but not `name @` inside a URL.
            Some((name, url)) if !name.contains('/') && !name.contains(':') => Some(url.trim()),
            _ if before_marker.contains('/') => Some(before_marker),
            _ => None,
        };
        let Some(location) = location else {
            let named = before_marker.starts_with(|c: char| c.is_ascii_alphanumeric());
            if is_archive(before_marker) {
                return self.archive(before_marker, at);
            }
            return if named {
                Ok(())
            } else {
                at.refuse(no_package(before_marker))
            };
        };
        if location.starts_with("https://") || location.starts_with("http://") {
            let path = location.split(['?', '#']).next().unwrap_or_default();
            return if is_archive(path) {
                Ok(())
            } else {
                at.refuse(no_package(location))
            };
        }
        if location.contains(':') || !is_archive(location) {
            return at.refuse(no_package(location));
        }
        self.archive(location, at)
    }

    fn archive(&mut self, location: &str, at: &SourceLocation<'_>) -> Result<(), RequirementsError> {
        match relative(Path::new(""), location).filter(|w| self.app.join(w).is_file()) {
            Some(archive) => {
                self.all.archives.push(archive);
                Ok(())
            }
            None => at.refuse(format!(
                "\"{location}\" is not a file in the function's folder: add it or remove the line"
            )),
        }
    }
}

/// Returns whether pip takes this for a wheel or a source archive.
fn is_archive(name: &str) -> bool {
    [
        ".whl", ".zip", ".tar.gz", ".tgz", ".tar.bz2", ".tbz", ".tar.xz", ".txz", ".tar",
    ]
    .iter()
    .any(|end| name.ends_with(end))
}

fn no_package(what: &str) -> String {
    format!(
        "\"{what}\" is no package, wheel or source archive: directories and repositories are not installed; name a \
         package, \
         or copy its files into the function's folder"
    )
}

/// Removes a comment. pip takes `#` as a comment at the start of a line or after white space.
fn without_comment(line: &str) -> &str {
    let bytes = line.as_bytes();
    let at = (0..bytes.len()).find(|i| bytes[*i] == b'#' && (*i == 0 || bytes[i - 1].is_ascii_whitespace()));
    at.map_or(line, |at| &line[..at])
}

/// Resolves `path`, relative to the directory `from`, to a path in the folder.
fn relative(from: &Path, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    let joined = from.join(path);
    for component in joined.components() {
        match component {
            Component::Normal(part) => parts.push(part.to_str()?),
            Component::CurDir => {}
            Component::ParentDir => {
                parts.pop()?;
            }
            _ => return None,
        }
    }
    (!parts.is_empty()).then(|| parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = directory.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        directory
    }

    fn one(text: &str) -> Result<Option<Requirements>, RequirementsError> {
        let folder = folder(&[(FILE_NAME, text), ("w/x-1-py3-none-any.whl", ""), ("pkg/setup.py", "")]);
        read(folder.path())
    }

    #[test]
    fn named_requirements_and_wheels_pass() {
        let text = "# a comment\nsix==1.16.0  # pinned\nrequests[socks]>=2,<3 ; python_version > '3.8'\n\
                    numpy==1.26.4 \\\n  --hash=sha256:aa \\\n  --hash=sha256:bb\n\
                    --index-url https://example.org/simple\n\
                    ./w/x-1-py3-none-any.whl\ny @ https://example.org/y-1-py3-none-any.whl#sha256=cc\n\
                    --only-binary :all:\nz @ https://example.org/z-1.tar.gz\n--no-binary=six\n";
        let all = one(text).unwrap().unwrap();
        assert_eq!(all.lines.len(), 9, "{:?}", all.lines);
        assert_eq!(all.archives, ["w/x-1-py3-none-any.whl"]);
        assert!(all.lines[2].contains("--hash=sha256:bb"));
    }

    #[test]
    fn what_is_no_package_or_reaches_elsewhere_is_refused_with_its_line() {
        for line in [
            "-e .",
            "-e ./pkg",
            "./pkg",
            "pkg/",
            ".",
            "..",
            "git+https://example.org/x.git",
            "x @ git+ssh://example.org/x.git",
            "x @ file:///etc/passwd.whl",
            "file:///w/x-1-py3-none-any.whl",
            "x-1.tar.gz",
            "/opt/x-1-py3-none-any.whl",
            "../x-1-py3-none-any.whl",
            "--no-binary",
            "-r /etc/passwd",
            "-r ../other.txt",
            "-r/etc/passwd",
            "-f https://example.org/links",
            "--trusted-host example.org",
            "--index-url https://example.org/${PIP_PASSWORD}",
            "six\u{c}--no-binary :all:",
            "six\t--global-option=x",
            "six -e .",
            "six --global-option=x",
            "six --hash=sha256:aa --config-settings=x=y",
            "--index-url file:///etc",
        ] {
            let error = one(&format!("six\n{line}\n")).unwrap_err();
            assert_eq!((error.file.as_str(), error.line), (FILE_NAME, 2), "{line}");
            assert!(error.message.contains(':'), "{error}");
        }
    }

    #[test]
    fn included_files_are_taken_in() {
        let folder = folder(&[
            (FILE_NAME, "-r more/base.txt\n-c limits.txt\nsix\n"),
            ("more/base.txt", "idna\n-r other.txt\n"),
            ("more/other.txt", "attrs\n"),
            ("limits.txt", "six<2\n"),
        ]);
        let all = read(folder.path()).unwrap().unwrap();
        assert_eq!(all.lines, ["idna", "attrs", "six"]);
        assert_eq!(all.constraints, ["six<2"]);
    }

    #[test]
    fn a_circle_of_files_is_refused_and_an_empty_list_installs_nothing() {
        assert!(one("-r requirements.txt\n").unwrap_err().message.contains("circle"));
        assert_eq!(one("# nothing\n\n").unwrap(), None);
    }
}

//! `fn init`: writes a template into a folder. The templates are those under `functions/templates/`, embedded by
//! `build.rs`. Nothing that is there is overwritten.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use rekindle_wire::FunctionName;
use rekindle_wire::ids::FUNCTION_NAME_MAX;

use crate::args::{InitArgs, Template};

/// One embedded file: template, path inside it, executable, content.
type Embedded = (&'static str, &'static str, bool, &'static [u8]);

/// Where a template wants the function's name.
const NAME_MARK: &str = "{{name}}";

static FILES: &[Embedded] = include!(concat!(env!("OUT_DIR"), "/templates.rs"));

/// Makes the folder and says what to do next.
pub(crate) fn run(args: &InitArgs) -> Result<ExitCode> {
    let written = write(args.runtime, &args.dir)?;
    for path in &written {
        println!("  {}", path.display());
    }
    let here = args.dir == Path::new(".");
    let arg = if here {
        String::new()
    } else {
        format!(" {}", args.dir.display())
    };
    println!("next: fn deploy{arg}");
    Ok(ExitCode::SUCCESS)
}

/// Writes the template into `dir`, named after it. Returns the files written.
fn write(template: Template, dir: &Path) -> Result<Vec<PathBuf>> {
    let files: Vec<&Embedded> = FILES.iter().filter(|f| f.0 == template.as_str()).collect();
    if files.is_empty() {
        bail!(
            "this fn was built without the {} template: build it from a whole checkout",
            template.as_str()
        );
    }
    for (_, inside, ..) in &files {
        let path = dir.join(inside);
        if path.exists() {
            bail!(
                "{} is there already: choose another folder, or move it away",
                path.display()
            );
        }
    }
    fs::create_dir_all(dir).with_context(|| format!("{}: the folder cannot be made", dir.display()))?;
    let name = name_for(dir)?;
    let mut written = Vec::new();
    for (_, inside, executable, content) in files {
        let path = dir.join(inside);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).with_context(|| format!("{}: the folder cannot be made", parent.display()))?;
        }
        fs::write(&path, filled(content, &name)).with_context(|| format!("{}: cannot be written", path.display()))?;
        if *executable {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
                .with_context(|| format!("{}: cannot be made executable", path.display()))?;
        }
        written.push(path);
    }
    Ok(written)
}

/// The folder's name as a function's name: what does not fit becomes a dash.
fn name_for(dir: &Path) -> Result<FunctionName> {
    let full = dir
        .canonicalize()
        .with_context(|| format!("{}: the folder cannot be read", dir.display()))?;
    let base = full
        .file_name()
        .map(|n| n.to_string_lossy().to_lowercase())
        .unwrap_or_default();
    let fits = |c: char| {
        if c.is_ascii_lowercase() || c.is_ascii_digit() {
            c
        } else {
            '-'
        }
    };
    let dashed: String = base.chars().map(fits).collect();
    let cut: String = dashed
        .trim_start_matches(|c: char| !c.is_ascii_lowercase())
        .chars()
        .take(FUNCTION_NAME_MAX)
        .collect();
    let name = cut.trim_end_matches('-');
    let name = if name.is_empty() { "function" } else { name };
    name.parse().with_context(|| {
        format!(
            "{}: no function name can be made of it: choose another folder",
            full.display()
        )
    })
}

/// The file with the function's name put in where the template leaves room for it.
fn filled(content: &[u8], name: &FunctionName) -> Vec<u8> {
    match std::str::from_utf8(content) {
        Ok(text) => text.replace(NAME_MARK, name.as_str()).into_bytes(),
        Err(_) => content.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use rekindle_wire::manifest;

    use super::*;

    #[test]
    fn every_template_has_a_manifest_that_passes_and_carries_the_folders_name() {
        for template in [Template::Python, Template::Node, Template::Http] {
            let dir = tempfile::tempdir().unwrap();
            let folder = dir.path().join("My Fun_c");
            write(template, &folder).unwrap();
            let text = fs::read_to_string(folder.join("fn.toml")).unwrap();
            let manifest = manifest::parse(&text).unwrap();
            assert_eq!(manifest.name.as_str(), "my-fun-c");
            assert_eq!(super::super::runtime_word(manifest.runtime), template.as_str());
        }
    }

    #[test]
    fn what_is_there_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("fn.toml"), "mine").unwrap();
        let error = write(Template::Python, dir.path()).unwrap_err().to_string();
        assert!(error.contains("is there already"), "{error}");
        assert_eq!(fs::read_to_string(dir.path().join("fn.toml")).unwrap(), "mine");
    }

    #[test]
    fn a_folder_whose_name_does_not_fit_gets_one_that_does() {
        let dir = tempfile::tempdir().unwrap();
        for (folder, name) in [("2nd_Try-", "nd-try"), ("42", "function"), ("a.b", "a-b")] {
            let path = dir.path().join(folder);
            fs::create_dir(&path).unwrap();
            assert_eq!(name_for(&path).unwrap().as_str(), name);
        }
    }
}

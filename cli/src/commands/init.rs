//! `fn init`: writes a template into a folder. The templates are those under `functions/templates/`, embedded by
//! `build.rs`. Existing files are never overwritten.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

use anyhow::{Context as _, Result, anyhow, bail};
use rekindle_wire::FunctionName;
use rekindle_wire::function_config::{self, Base, Runtime};
use rekindle_wire::ids::FUNCTION_NAME_MAX;

use super::runtimes::month;
use crate::args::{InitArgs, Template};
use crate::show::{self, Tone};
use crate::up::runtimes::archive;

/// One embedded file: template, path inside it, executable, content.
type Embedded = (&'static str, &'static str, bool, &'static [u8]);

/// Placeholder for the function's name in a template.
const NAME_MARK: &str = "{{name}}";
/// Placeholder for the runtime and its version.
const RUNTIME_MARK: &str = "{{runtime}}";
/// Where a platform on this machine has its runtimes, unless FN_CACHE says otherwise.
const CACHE: &str = "/var/cache/rekindle";

static FILES: &[Embedded] = include!(concat!(env!("OUT_DIR"), "/templates.rs"));

/// Makes the folder and prints what to do next.
pub(crate) fn run(args: &InitArgs) -> Result<ExitCode> {
    let name = match &args.name {
        Some(name) => name.clone(),
        None => name_of(&args.dir)?,
    };
    let cache = env::var_os("FN_CACHE").map_or_else(|| PathBuf::from(CACHE), PathBuf::from);
    let month = month();
    let runtime = version(args.runtime, &cache, &month);
    let written = write(args.runtime.runtime, runtime, &args.dir, &name)?;
    for path in &written {
        say!("  {}", path.display());
    }
    if let Some(advice) = function_config::advice(&format!("runtime = \"{runtime}\""), &month) {
        eprintln!("{} {advice}", show::tinted_err("runtime:", Tone::Warning));
    }
    let here = args.dir == Path::new(".");
    let arg = if here {
        String::new()
    } else {
        format!(" {}", args.dir.display())
    };
    say!("next: fn deploy{arg}");
    Ok(ExitCode::SUCCESS)
}

/// The name of the runtime and its version. It is the one that is named, or the newest that is built on this machine
/// and is repaired in this month. Without either it is the one that each platform has.
fn version(template: Template, cache: &Path, month: &str) -> &'static str {
    let of_runtime = |base: &Base| base.runtime() == Some(template.runtime);
    let is_good = |base: &Base| {
        let is_supported = base.interpreter().is_some_and(|is| is.is_supported(month));
        is_supported && archive(cache, base.as_str()).is_file()
    };
    let newest = || Base::ALL.into_iter().rev().filter(of_runtime).find(is_good);
    let usual = || Base::USUAL.into_iter().find(of_runtime);
    let base = template.base.or_else(newest).or_else(usual);
    base.and_then(Base::interpreter)
        .map_or(template.runtime.as_str(), |is| is.versioned)
}

/// Writes the template into `dir`, for a function of this name. Returns the files written.
fn write(template: Runtime, runtime: &str, dir: &Path, name: &FunctionName) -> Result<Vec<PathBuf>> {
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
    let mut written = Vec::new();
    for (_, inside, executable, content) in files {
        let path = dir.join(inside);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).with_context(|| format!("{}: the folder cannot be made", parent.display()))?;
        }
        fs::write(&path, filled(content, name, runtime))
            .with_context(|| format!("{}: cannot be written", path.display()))?;
        if *executable {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
                .with_context(|| format!("{}: cannot be made executable", path.display()))?;
        }
        written.push(path);
    }
    Ok(written)
}

/// The folder's own name, if a function can have it.
fn name_of(dir: &Path) -> Result<FunctionName> {
    let full = if dir.exists() {
        dir.canonicalize()
    } else {
        std::path::absolute(dir)
    };
    let full = full.with_context(|| format!("{}: the folder cannot be read", dir.display()))?;
    let base = full.file_name().map(|n| n.to_string_lossy().into_owned());
    let base = base.unwrap_or_default();
    base.parse().map_err(|e| {
        let better = similar(&base);
        anyhow!(
            "{e}; name the folder \"{better}\", or say `fn init --name {better} {}`",
            dir.display()
        )
    })
}

/// A function's name as similar to `text` as possible: what does not fit becomes a dash.
fn similar(text: &str) -> String {
    let lower = text.to_lowercase();
    let dashed = lower.replace(|c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit(), "-");
    let begun = dashed.trim_start_matches(|c: char| !c.is_ascii_lowercase());
    let cut: String = begun.chars().take(FUNCTION_NAME_MAX).collect();
    let name = cut.trim_end_matches('-');
    if name.is_empty() { "greet" } else { name }.to_owned()
}

/// The file with the placeholders replaced.
fn filled(content: &[u8], name: &FunctionName, runtime: &str) -> Vec<u8> {
    match std::str::from_utf8(content) {
        Ok(text) => text
            .replace(NAME_MARK, name.as_str())
            .replace(RUNTIME_MARK, runtime)
            .into_bytes(),
        Err(_) => content.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use rekindle_wire::function_config;

    use super::*;

    fn name(text: &str) -> FunctionName {
        text.parse().unwrap()
    }

    #[test]
    fn every_template_has_a_config_that_passes_and_carries_the_name() {
        for (template, runtime) in [
            (Runtime::Python, "python3.14"),
            (Runtime::Node, "node24"),
            (Runtime::Http, "http"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let folder = dir.path().join("My Fun_c");
            write(template, runtime, &folder, &name("my-fun-c")).unwrap();
            let text = fs::read_to_string(folder.join("fn.toml")).unwrap();
            let config = function_config::parse(&text).unwrap();
            assert_eq!(config.name.as_str(), "my-fun-c");
            assert_eq!(config.runtime, template);
            assert!(text.contains(&format!("runtime = \"{runtime}\"")), "{text}");
        }
    }

    #[test]
    fn a_new_function_is_for_the_version_named_or_the_newest_that_is_here_and_repaired() {
        let dir = tempfile::tempdir().unwrap();
        let chosen = |name: &str| version(name.parse().unwrap(), dir.path(), "2026-11");
        assert_eq!(["python", "node", "http"].map(chosen), ["python3.11", "node18", "http"]);
        fs::create_dir(dir.path().join("runtimes")).unwrap();
        for built in ["python3.13", "node", "node20", "node22"] {
            fs::write(archive(dir.path(), built), "").unwrap();
        }
        assert_eq!(["python", "node"].map(chosen), ["python3.13", "node22"]);
        assert_eq!(["python3.14", "node18"].map(chosen), ["python3.14", "node18"]);
        assert!(
            "python2"
                .parse::<Template>()
                .unwrap_err()
                .contains("python3.14, node18")
        );
    }

    #[test]
    fn what_is_there_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("fn.toml"), "mine").unwrap();
        let error = write(Runtime::Python, "python", dir.path(), &name("a"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("is there already"), "{error}");
        assert_eq!(fs::read_to_string(dir.path().join("fn.toml")).unwrap(), "mine");
    }

    #[test]
    fn a_folder_whose_name_does_not_fit_is_refused_with_one_that_does() {
        let dir = tempfile::tempdir().unwrap();
        for (folder, better) in [
            ("2nd_Try-", "nd-try"),
            ("42", "greet"),
            ("a.b", "a-b"),
            ("Bad_Name", "bad-name"),
            ("\u{e4}rger", "rger"),
        ] {
            let path = dir.path().join(folder);
            let error = name_of(&path).unwrap_err().to_string();
            assert!(error.contains(&format!("--name {better} ")), "{error}");
            assert_eq!(name(better).as_str(), better);
        }
        assert_eq!(name_of(&dir.path().join("greet")).unwrap().as_str(), "greet");
    }
}

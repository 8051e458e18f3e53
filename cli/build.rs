//! Embeds files into the binary, so that it needs no checkout: the folders under `functions/templates/` for `fn init`,
//! and `functions/runtimes/` for `fn runtimes add`. Writes `templates.rs`, one `(template, path inside it, executable,
//! bytes)` row for each file, and `runtimes.rs`, one `(path, content)` row; both sorted.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let functions = PathBuf::from(variable("CARGO_MANIFEST_DIR")?)
        .join("../functions")
        .canonicalize()?;
    let out = PathBuf::from(variable("OUT_DIR")?);
    let mut templates = Vec::new();
    for template in ["http", "node", "python"] {
        for (inside, path) in files(&functions.join("templates").join(template))? {
            let executable = is_executable(&path)?;
            templates.push(format!(
                "({template:?}, {inside:?}, {executable}, include_bytes!({path:?}))"
            ));
        }
    }
    fs::write(out.join("templates.rs"), slice(&templates)?)?;
    let mut runtimes = Vec::new();
    for (inside, path) in files(&functions.join("runtimes"))? {
        let content = if path.is_symlink() {
            format!("Content::Link({:?})", fs::read_link(&path)?)
        } else {
            let executable = is_executable(&path)?;
            format!("Content::File {{ executable: {executable}, bytes: include_bytes!({path:?}) }}")
        };
        runtimes.push(format!("({inside:?}, {content})"));
    }
    fs::write(out.join("runtimes.rs"), slice(&runtimes)?)
}

fn variable(name: &str) -> io::Result<String> {
    env::var(name).map_err(io::Error::other)
}

/// The source text of a slice with these elements.
fn slice(elements: &[String]) -> io::Result<String> {
    let mut text = String::from("&[\n");
    for element in elements {
        writeln!(text, "    {element},").map_err(io::Error::other)?;
    }
    text.push(']');
    Ok(text)
}

/// The files and links below `top`, each with its path inside; sorted.
fn files(top: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let (mut found, mut folders) = (Vec::new(), vec![top.to_owned()]);
    while let Some(folder) = folders.pop() {
        println!("cargo:rerun-if-changed={}", folder.display());
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let path = entry.path();
            if !entry.file_type()?.is_dir() {
                let inside = path.strip_prefix(top).map_err(io::Error::other)?;
                found.push((inside.display().to_string(), path));
            } else if entry.file_name() != "__pycache__" {
                folders.push(path);
            }
        }
    }
    found.sort();
    for (_, path) in found.iter().filter(|(_, path)| !path.is_symlink()) {
        println!("cargo:rerun-if-changed={}", path.display());
    }
    Ok(found)
}

fn is_executable(path: &Path) -> io::Result<bool> {
    Ok(fs::metadata(path)?.permissions().mode() & 0o111 != 0)
}

//! Embeds the folders under `functions/templates/` into the binary, so that `fn init` needs no network and no checkout.
//! Writes `templates.rs`: one `(template, path inside it, executable, bytes)` row for each file, sorted.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").map_err(io::Error::other)?).join("../functions/templates");
    println!("cargo:rerun-if-changed={}", root.display());
    let mut rows = Vec::new();
    for template in ["python", "node", "http"] {
        let folder = root.join(template);
        collect(&folder, &folder, template, &mut rows)?;
    }
    rows.sort();
    let mut out = String::from("&[\n");
    for (template, inside, executable, file) in rows {
        writeln!(
            out,
            "    ({template:?}, {inside:?}, {executable}, include_bytes!({file:?})),"
        )
        .map_err(io::Error::other)?;
    }
    out.push(']');
    let target = PathBuf::from(env::var("OUT_DIR").map_err(io::Error::other)?).join("templates.rs");
    fs::write(target, out)
}

type Row = (&'static str, String, bool, PathBuf);

fn collect(top: &Path, folder: &Path, template: &'static str, rows: &mut Vec<Row>) -> io::Result<()> {
    println!("cargo:rerun-if-changed={}", folder.display());
    for entry in fs::read_dir(folder)? {
        let path = entry?.path().canonicalize()?;
        if path.is_dir() {
            collect(top, &path, template, rows)?;
            continue;
        }
        println!("cargo:rerun-if-changed={}", path.display());
        let inside = path.strip_prefix(top.canonicalize()?).map_err(io::Error::other)?;
        let executable = fs::metadata(&path)?.permissions().mode() & 0o111 != 0;
        rows.push((template, inside.display().to_string(), executable, path));
    }
    Ok(())
}

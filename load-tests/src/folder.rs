//! Folders of functions.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

/// Copies a folder without the bytecode in it.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir(to).with_context(|| format!("{}: cannot be made", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("{}: cannot be read", from.display()))? {
        let path = entry
            .with_context(|| format!("{}: cannot be read", from.display()))?
            .path();
        let Some(name) = path.file_name().filter(|n| *n != "__pycache__") else {
            continue;
        };
        if path.is_dir() {
            copy(&path, &to.join(name))?;
        } else {
            fs::copy(&path, to.join(name)).with_context(|| format!("{}: cannot be copied", path.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_every_file_but_no_bytecode() {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("from");
        fs::create_dir_all(from.join("package/__pycache__")).unwrap();
        fs::write(from.join("main.py"), "1").unwrap();
        fs::write(from.join("package/module.py"), "2").unwrap();
        fs::write(from.join("package/__pycache__/module.pyc"), "3").unwrap();
        let to = dir.path().join("to");
        copy(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("package/module.py")).unwrap(), "2");
        assert!(to.join("main.py").exists() && !to.join("package/__pycache__").exists());
    }
}

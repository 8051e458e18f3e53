//! Processes that a checkpoint would miss. One whose parent ended is given to init by the kernel, and so is no longer in the
//! tree below the function's first process, which is what CRIU stops and dumps: it would run on while files are saved, and be
//! missing in every copy.

use std::fs;
use std::io;
use std::path::Path;

use crate::protocol::FUNCTION_PID;

/// The processes of this pid namespace that are init's children, but neither the function nor one of `known`, and that are
/// not dead already: id and name. `proc` is where the namespace's proc is mounted.
///
/// # Errors
/// When `proc` cannot be read.
pub fn strays(proc: &Path, known: &[i32]) -> io::Result<Vec<(i32, String)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(proc)? {
        let Some(pid) = entry?.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else {
            continue;
        };
        // One that has just gone is no stray.
        let stat = fs::read(proc.join(pid.to_string()).join("stat")).unwrap_or_default();
        let stat = String::from_utf8_lossy(&stat).into_owned();
        if let Some((name, 'R' | 'S' | 'D' | 'T' | 't' | 'I', 1)) = parse(&stat)
            && pid != FUNCTION_PID
            && !known.contains(&pid)
        {
            found.push((pid, name.to_owned()));
        }
    }
    Ok(found)
}

/// Name, state and parent. The name may hold anything, so it ends at the last parenthesis.
fn parse(stat: &str) -> Option<(&str, char, i32)> {
    let (head, rest) = stat.rsplit_once(')')?;
    let (_, name) = head.split_once('(')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((name, state, fields.next()?.parse().ok()?))
}

/// Refuses a checkpoint when there are any.
///
/// # Errors
/// A sentence that names one of them.
pub fn refuse(proc: &Path, known: &[i32]) -> Result<(), String> {
    let strays = strays(proc, known).map_err(|e| format!("look for processes in {}: {e}", proc.display()))?;
    match strays.first() {
        None => Ok(()),
        Some((pid, name)) => Err(format!(
            "process {pid} (\"{name}\") has outlived its parent and would be missing in the snapshot; keep the parent of a \
             background process running, or set snapshot = false in fn.toml"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_living_child_of_init_that_nobody_knows_is_a_stray() {
        let proc = tempfile::tempdir().unwrap();
        let processes = [
            "1 (init) S 0 1",
            "501 (python3) t 1 501",
            "502 (child) t 501 501",
            "3 (criu) R 1 3",
            "4 (helper) R 3 3",
            "600 (dead) Z 1 501",
        ];
        for stat in processes {
            let dir = proc.path().join(stat.split(' ').next().unwrap());
            fs::create_dir(&dir).unwrap();
            fs::write(dir.join("stat"), stat).unwrap();
        }
        fs::create_dir(proc.path().join("sys")).unwrap();
        assert_eq!(refuse(proc.path(), &[3]), Ok(()));
        let stray = proc.path().join("700");
        fs::create_dir(&stray).unwrap();
        fs::write(stray.join("stat"), "700 (a) S 9 (b) S 1 700").unwrap();
        let told = refuse(proc.path(), &[3]).unwrap_err();
        assert!(told.contains("700") && told.contains("a) S 9 (b"), "{told}");
    }
}

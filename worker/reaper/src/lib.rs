//! The reaper: parent of a function's program, and of its processes that outlive their parents. So they stay in the
//! tree that a checkpoint holds. Its source is in `src/program`.

/// The program; empty if there is none for this processor. Its arguments are the path of the function's program, and
/// that program's own arguments, the first being its name.
pub const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/reaper"));

/// Where it is in the root of a container image, and below `/app` in other functions' files.
pub const PATH: &str = ".rekindle/reaper";

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::ExitStatusExt as _;
    use std::path::PathBuf;
    use std::process::{Command, Output};

    use super::PROGRAM;

    /// Has the reaper run a script of the shell.
    fn run(script: &str) -> Output {
        let directory = tempfile::tempdir().unwrap();
        let program: PathBuf = directory.path().join("reaper");
        fs::write(&program, PROGRAM).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let mut reaper = Command::new(&program);
        reaper.args(["/bin/sh", "its-name", "-c", script, "script", "argument"]);
        reaper.env("GIVEN", "too").output().unwrap()
    }

    #[test]
    fn it_ends_as_its_program_does() {
        assert_eq!(run("exit 7").status.code(), Some(7));
        assert_eq!(run("kill -TERM $$").status.signal(), Some(15));
        let told = run("echo $1 $GIVEN");
        assert_eq!(String::from_utf8_lossy(&told.stdout), "argument too\n");
    }

    #[test]
    fn its_program_leads_a_session_and_signals_to_its_group_leave_it_alone() {
        let script = "trap : TERM; kill -TERM 0; read _ _ _ parent group session _ < /proc/$$/stat; \
                      [ $group = $$ ] && [ $session = $$ ] && [ -d /proc/$parent ] && exit 9";
        assert_eq!(run(script).status.code(), Some(9));
    }

    #[test]
    fn it_adopts_what_outlives_its_parent_and_waits_for_it() {
        // The orphan's parent is the program's, and nothing is left of another that has ended.
        let script = "here=$PPID; orphan=$(sh -c 'sleep 60 > /dev/null & echo $!'); ended=$(sh -c ': & echo $!'); \
                      until [ $(cut -d' ' -f4 /proc/$orphan/stat) = $here ]; do :; done; \
                      while [ -d /proc/$ended ]; do :; done; kill $orphan; exit 5";
        assert_eq!(run(script).status.code(), Some(5));
    }
}

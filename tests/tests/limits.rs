//! What one instance may use up, seen from inside and outside: open files, /dev/shm, log lines.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use rekindle_e2e::{Folder, shared};

const GREEDY: &str = r#"
import errno, os

def fill(path):
    written = 0
    try:
        with open(path, "wb", buffering=0) as file:
            while written < 256 << 20:
                written += file.write(bytes(1 << 20))
    except OSError as error:
        return [errno.errorcode[error.errno], written >> 20]
    finally:
        os.unlink(path)
    return ["no limit", written >> 20]

def files():
    held = []
    try:
        while len(held) < 5000:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError as error:
        return [errno.errorcode[error.errno], len(held)]
    finally:
        for descriptor in held:
            os.close(descriptor)
    return ["no limit", len(held)]

def handler(event, context):
    what = event["rawPath"].strip("/")
    if what == "files":
        return files()
    if what == "tmp":
        return fill("/tmp/filler")
    if what == "shm":
        return fill("/dev/shm/filler")
    os.write(1, b"a line of a flood\n" * 20000)
    return ["written", 20000]
"#;

#[test]
fn files_and_memory_filesystems_end_where_the_contract_says_booted_or_restored() {
    shared().deploy(&Folder::python("greedy", "tmp = \"8MiB\"", GREEDY));
    for start in ["booted", "restored"] {
        let ask = |what: &str| shared().fresh(start, "greedy", what).ok().json();
        let files = ask("/files");
        assert_eq!(files[0], "EMFILE", "{files}");
        assert!(files[1].as_u64().unwrap() < 1024, "{files}");
        for (path, mib) in [("/tmp", 8), ("/shm", 24)] {
            let filled = ask(path);
            assert_eq!(filled[0], "ENOSPC", "{start} {path}: {filled}");
            assert!(filled[1].as_u64().unwrap() <= mib, "{start} {path}: {filled}");
        }
    }
}

#[test]
fn a_flood_of_lines_is_cut_and_counted_and_the_function_goes_on() {
    shared().deploy(&Folder::python("flood", "", GREEDY));
    assert_eq!(shared().fresh("restored", "flood", "/log").ok().json()[1], 20_000);
    // Of 20,000 lines 2,000 pass at once, and 1,000 a second after.
    let told = shared().until_logged("flood", "lines were dropped").text;
    let dropped: u64 = told.split(' ').next().unwrap().parse().unwrap();
    assert!((1..20_000).contains(&dropped), "{told}");
    shared().get("flood", "/files").ok();
}

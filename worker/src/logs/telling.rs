//! Selects the lines that explain why a program did not start. The last ones often do not: below an error Node.js
//! prints its stack and version, Java the frames of each cause, Go those of each goroutine.

/// Texts of lines that name a cause, in lower case.
const CAUSES: [&str; 12] = [
    "error",
    "exception",
    "traceback",
    "panic",
    "fatal",
    "caused by",
    "cannot ",
    "can't ",
    "could not ",
    "failed",
    "not found",
    "no such file",
];
/// Prefixes of stack frames: `at` of Node.js and Java, `File` of Python, a path of Go's or Rust's.
const FRAMES: [&str; 4] = ["at ", "File \"", "/", "... "];
/// Number of last lines that are shown in any case.
const LAST: usize = 4;

/// Returns at most `most` of `lines`, oldest first, that probably explain why the program ended. `…` stands for lines
/// left out.
pub(crate) fn telling(lines: &[String], most: usize) -> Vec<String> {
    let last = lines.len().saturating_sub(LAST.min(most));
    let mut shown: Vec<usize> = (last..lines.len()).collect();
    let causes = (0..last).rev().filter(|&n| names_a_cause(&lines[n]));
    // Earlier lines are mostly the cause of later ones, or what was tried.
    for n in causes {
        // The next line continues the message: a panic's message, or what a module was searched by.
        shown.extend([n, n + 1].iter().filter(|n| **n < last && !is_frame(&lines[**n])));
        shown.sort_unstable();
        shown.dedup();
        if shown.len() >= most {
            break;
        }
    }
    // The remaining room is for the lines right before the end.
    let mut before = (0..last).rev();
    while shown.len() < most
        && let Some(n) = before.next()
    {
        if !shown.contains(&n) {
            shown.push(n);
        }
    }
    shown.sort_unstable();
    let surplus = shown.len().saturating_sub(most);
    let shown = &shown[surplus..];
    let mut told = Vec::new();
    let mut expected = 0;
    for &n in shown {
        if n != expected {
            told.push("…".to_owned());
        }
        told.push(lines[n].clone());
        expected = n + 1;
    }
    told
}

fn names_a_cause(line: &str) -> bool {
    let lower = line.to_lowercase();
    !is_frame(line) && CAUSES.iter().any(|cause| lower.contains(cause))
}

fn is_frame(line: &str) -> bool {
    let line = line.trim_start();
    // Lines of a shell or a loader begin with its own path, and continue after a colon.
    let is_told_by_path = line.starts_with('/') && line.contains(": ");
    FRAMES.iter().any(|frame| line.starts_with(frame)) && !is_told_by_path || line.starts_with("goroutine ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn few_lines_are_shown_as_they_are() {
        let all = lines("one\ntwo\nthree");
        assert_eq!(telling(&all, 12), all);
        assert!(telling(&[], 12).is_empty());
    }

    #[test]
    fn an_error_is_shown_though_a_long_stack_follows() {
        let mut text = "starting\nlistening soon\n/app/node_modules/bindings/bindings.js:121\n        throw e;\n\n\
            Error: Could not locate the bindings file. Tried:\n"
            .to_owned();
        (0..14).for_each(|n| text.push_str(&format!(" → /app/node_modules/build-{n}/better_sqlite3.node\n")));
        (0..9).for_each(|n| text.push_str(&format!("    at f{n} (/app/node_modules/x.js:{n}:1)\n")));
        text.push_str("  tries: [\n  ]\n}\n\nNode.js v18.20.4\n");
        let told = telling(&lines(&text), 12);
        assert!(told.len() <= 14);
        assert!(
            told.iter()
                .any(|line| line.contains("Could not locate the bindings file")),
            "{told:#?}"
        );
        assert_eq!(told.last().unwrap(), "Node.js v18.20.4");
    }

    #[test]
    fn the_root_cause_of_nested_exceptions_is_shown() {
        let mut text = "Exception in thread \"main\" java.lang.IllegalStateException: context\n".to_owned();
        (0..30).for_each(|n| text.push_str(&format!("\tat org.example.A{n}.run(A.java:{n})\n")));
        text.push_str("Caused by: java.net.ConnectException: Connection refused\n");
        (0..30).for_each(|n| text.push_str(&format!("\tat java.base/sun.nio.ch.B{n}.call(B.java:{n})\n")));
        text.push_str("\t... 40 more\n");
        let told = telling(&lines(&text), 12).join("\n");
        assert!(
            told.contains("context") && told.contains("Caused by: java.net.ConnectException"),
            "{told}"
        );
    }

    #[test]
    fn what_a_shell_or_a_loader_says_is_no_frame() {
        for line in [
            "/app/run.sh: 3: serve: not found",
            "/app/server: error while loading shared libraries: libz.so.1: cannot open shared object file",
        ] {
            assert!(names_a_cause(line), "{line}");
        }
        assert!(!names_a_cause("/app/node_modules/failed/error.js:121"));
    }

    #[test]
    fn of_many_errors_the_newest_are_shown() {
        let text: String = (0..100).map(|n| format!("error {n}\n")).collect();
        let told = telling(&lines(&text), 12);
        assert_eq!(told.len(), 13, "with the mark of what is left out");
        assert_eq!(told.last().unwrap(), "error 99");
    }
}

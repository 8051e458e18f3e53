//! Checks that the error codes match their pages in `docs/reference/errors/`.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeSet;
use std::path::Path;

use rekindle_wire::ErrorCode;

#[test]
fn every_code_has_a_page_that_says_what_to_do_and_no_page_is_left_over() {
    // Cargo may have reused this test binary from another checkout.
    let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let folder = Path::new(&here).join("../../docs/reference/errors");
    let mut pages: BTreeSet<String> = std::fs::read_dir(&folder)
        .unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    for code in ErrorCode::ALL {
        let file = format!("{}.md", code.as_str());
        assert!(pages.remove(&file), "docs/reference/errors/{file} is missing");
        let text = std::fs::read_to_string(folder.join(&file)).unwrap();
        let title = format!("# `{}` ({})\n", code.as_str(), code.status().as_u16());
        assert!(
            text.starts_with(&title),
            "docs/reference/errors/{file} must start with {title:?}"
        );
        for section in ["## Meaning\n\n", "## What to do\n\n"] {
            let after = text.split_once(section).map(|(_, after)| after.trim());
            assert!(
                after.is_some_and(|a| !a.is_empty() && !a.starts_with('#')),
                "docs/reference/errors/{file} needs a section {section:?}"
            );
        }
    }
    assert!(pages.is_empty(), "pages of no code: {pages:?}");
}

//! The runtime contract's table of kernel objects names a test for each row: that it is there.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;

use rekindle_e2e::binaries::checkout;

#[test]
fn each_kernel_object_of_the_contract_has_its_test() {
    let contract = fs::read_to_string(checkout().join("docs/reference/runtime-contract.md")).unwrap();
    let table = contract.split_once("| kernel object |").unwrap().1;
    let rows = table
        .lines()
        .skip(2)
        .map(str::trim)
        .take_while(|line| line.starts_with('|'));
    let mut count = 0;
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
        let [_, _, test] = cells[..] else { panic!("{row}") };
        let (file, name) = test.trim().trim_matches('`').split_once("::").unwrap();
        let code = fs::read_to_string(checkout().join(format!("tests/tests/{file}.rs"))).unwrap();
        assert!(code.contains(&format!("#[test]\nfn {name}()")), "{test} is no test");
        count += 1;
    }
    assert!(count > 15, "{count} rows were found");
}

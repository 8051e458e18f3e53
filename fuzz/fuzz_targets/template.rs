#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rekindle_snapshotter::fuzz::template(bytes));

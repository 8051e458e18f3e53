#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _taken = rekindle_restore_compiler::fuzz::read(bytes);
});

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ended = rekindle_pager::fuzz::handshake(bytes);
});

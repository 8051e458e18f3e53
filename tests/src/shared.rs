//! One platform for all tests of a binary. It is stopped when the binary ends, and anything it leaves behind fails the
//! run.
#![expect(
    unsafe_code,
    reason = "tests have no end that all of them share; the C library has one"
)]

use std::sync::{LazyLock, Mutex};

use crate::Platform;

static SHARED: LazyLock<Platform> = LazyLock::new(|| {
    // SAFETY: the function is `extern "C"`, does not unwind, and lives as long as the program.
    let registered = unsafe { libc::atexit(at_end) };
    assert_eq!(registered, 0);
    let platform = Platform::start();
    *STARTED.lock().unwrap() = true;
    platform
});
static STARTED: Mutex<bool> = Mutex::new(false);

/// The binary's platform, started by the first caller.
pub fn shared() -> &'static Platform {
    &SHARED
}

extern "C" fn at_end() {
    if !STARTED.lock().is_ok_and(|started| *started) {
        return;
    }
    if let Err(why) = SHARED.end_shared() {
        eprintln!("the tests' platform did not end well: {why}");
        // SAFETY: ends the process at once; other exit handlers do not matter to a failed run.
        unsafe { libc::_exit(101) };
    }
}

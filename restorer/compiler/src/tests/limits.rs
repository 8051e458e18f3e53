//! Limits of processes.

use super::*;

#[test]
fn limits_apply_to_nothing_that_a_program_makes() {
    /// Of inotify.
    const WATCHING: u32 = 17;
    let mut images = good();
    open(&mut images, WATCHING);
    posix(&mut images).push(PosixTimer::default());
    let mut siginfo = vec![0; 128];
    siginfo[0] = 12;
    let signals = vec![SignalInfo { siginfo }];
    task(&mut images).signals_s = Some(SignalQueue { signals });
    let codes = codes(&images);
    let first = codes.iter().position(|code| *code == Code::Limit).unwrap();
    for made in [Code::Keep, Code::Threads, Code::Timer, Code::Signal, Code::WatchFile] {
        let last = codes.iter().rposition(|code| *code == made);
        assert!(last.unwrap() < first, "{made:?}: {codes:?}");
    }
}

//! Whether an idle processor resumes at once. In a virtual machine a processor that halts leaves the guest. Waking a
//! thread on it takes both transitions. A page fault that the pager serves takes two such wake-ups
//! (docs/how-to/size-a-cluster.md, On virtual machines).

use std::fs;

use super::Check;

const ABILITY: &str = "wake-ups";
const DRIVER: &str = "/sys/devices/system/cpu/cpuidle/current_driver";
const POLL_NS: &str = "/sys/module/haltpoll/parameters/guest_halt_poll_ns";

pub(super) fn check() -> Check {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    if read("/proc/cmdline").split_whitespace().any(|word| word == "idle=poll") {
        return Check::ok(ABILITY, "processors never halt (idle=poll)");
    }
    of(&read("/proc/cpuinfo"), read(DRIVER).trim(), read(POLL_NS).trim())
}

fn of(cpuinfo: &str, driver: &str, poll_ns: &str) -> Check {
    let Some(flags) = cpuinfo.lines().find(|l| l.starts_with("flags")) else {
        return Check::ok(ABILITY, "not told on this architecture");
    };
    if !flags.split_whitespace().any(|f| f == "hypervisor") {
        return Check::ok(ABILITY, "processors of its own");
    }
    let slow = "virtual processors halt as soon as they have nothing to do";
    match (driver, poll_ns.parse::<u64>()) {
        ("haltpoll", Ok(0)) => Check::weaker(
            ABILITY,
            slow,
            format!("for page faults that are served in a third of the time: echo 200000 > {POLL_NS}"),
        ),
        ("haltpoll", Ok(ns)) => Check::ok(
            ABILITY,
            format!("virtual processors wait up to {} µs before they halt", ns / 1000),
        ),
        ("" | "none", _) => Check::weaker(
            ABILITY,
            slow,
            "for page faults that are served in a third of the time, where the kernel has it: modprobe \
             cpuidle-haltpoll force=1",
        ),
        (other, _) => Check::ok(ABILITY, format!("virtual processors idle by {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_virtual_processors_that_halt_at_once_are_weaker() {
        let (own, virtual_one) = ("flags\t: fpu mwait\n", "flags\t\t: fpu hypervisor lm\nflags\t\t: fpu\n");
        assert!(of(own, "none", "").ok && of("Features\t: fp\n", "none", "").ok);
        for (driver, poll_ns) in [("haltpoll", "200000"), ("intel_idle", ""), ("haltpoll", "")] {
            assert!(of(virtual_one, driver, poll_ns).ok, "{driver} {poll_ns}");
        }
        for (driver, poll_ns) in [("haltpoll", "0"), ("none", "200000"), ("", "")] {
            let check = of(virtual_one, driver, poll_ns);
            assert!(!check.ok && !check.stops() && check.fix.is_some(), "{driver} {poll_ns}");
        }
    }
}

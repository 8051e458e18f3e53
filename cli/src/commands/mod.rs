//! The commands of `fn` that talk to a platform, check this machine, or make files; one module each.

pub(crate) mod access;
pub(crate) mod alias;
pub(crate) mod async_calls;
pub(crate) mod audit;
pub(crate) mod backup;
pub(crate) mod cluster;
pub(crate) mod config;
pub(crate) mod delete;
pub(crate) mod demo;
pub(crate) mod deploy;
pub(crate) mod describe;
pub(crate) mod diff;
pub(crate) mod doctor;
pub(crate) mod down;
pub(crate) mod init;
pub(crate) mod instances;
pub(crate) mod invoke;
pub(crate) mod key;
pub(crate) mod list;
pub(crate) mod login;
pub(crate) mod logs;
pub(crate) mod migrate;
pub(crate) mod namespace;
pub(crate) mod quota;
pub(crate) mod rollback;
pub(crate) mod runtimes;
pub(crate) mod schedule;
pub(crate) mod secret;
pub(crate) mod snapshot;
pub(crate) mod source;
pub(crate) mod stats;
pub(crate) mod status;
pub(crate) mod top;
pub(crate) mod usage;
pub(crate) mod versions;
pub(crate) mod workers;

use rekindle_wire::api::InstanceInfo;

use crate::show;

/// Prints instances, one a line.
fn print_instances(instances: &[InstanceInfo]) {
    let mut table = show::table([
        "INSTANCE",
        "FUNCTION",
        "VERSION",
        "STATE",
        "STARTED",
        "IN FLIGHT",
        "IDLE",
        "MEMORY",
        "EVICTED",
    ]);
    for i in instances {
        let state = i.state.as_str();
        table.add_row([
            i.id.to_string(),
            i.function.to_string(),
            i.version.to_string(),
            state.to_owned(),
            i.started.to_string(),
            i.in_flight.to_string(),
            show::millis(i.idle_ms as f64),
            show::bytes(i.memory_bytes),
            show::bytes(i.evicted_bytes),
        ]);
    }
    show::print_table(&table);
}

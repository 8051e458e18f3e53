//! The host's part of a worker's network: one interface, one table of rules, and forwarding turned on. All of it is
//! removed when the worker stops, or when a killed worker's successor starts.

use std::fs;
use std::io;
use std::path::PathBuf;

use netlink_sys::protocols::NETLINK_ROUTE;

use super::netlink::{Batch, NetlinkError, open};
use super::nft::{self, NftError};
use super::plan::Uplink;
use super::{links, rules};

const FORWARD4: &str = "/proc/sys/net/ipv4/ip_forward";
const FORWARD6: &str = "/proc/sys/net/ipv6/conf/all/forwarding";
/// Prefix of the names of all workers' tables.
const TABLES: &str = "rekindle-";

/// Why the host is not prepared.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// A setting of the kernel cannot be changed.
    #[error("set {}: make /proc/sys writable, or start the worker with --egress off", .0.display())]
    Setting(PathBuf, #[source] io::Error),
    /// The rules cannot be applied.
    #[error("make the host's packet filter")]
    Rules(#[source] NftError),
}

/// Writes a setting of the network namespace of the calling thread.
///
/// # Errors
/// Returns an error when the setting does not exist or must not be written.
pub(super) fn set(path: &str, value: &str) -> Result<(), HostError> {
    fs::write(path, value).map_err(|e| HostError::Setting(PathBuf::from(path), e))
}

/// Returns whether the host forwards IPv6.
pub(super) fn forwards6() -> bool {
    is_on(FORWARD6)
}

fn is_on(path: &str) -> bool {
    fs::read_to_string(path).is_ok_and(|text| text.trim() == "1")
}

/// Makes the host forward for this worker's router, and filters what it forwards.
///
/// # Errors
/// Returns an error when a setting or the rules are refused.
pub(super) fn prepare(uplink: &Uplink, ipv6: bool) -> Result<(), HostError> {
    // A host that forwarded nothing must not begin to forward for others. This also holds when this is a second worker.
    let guard = !is_on(FORWARD4) || is_guarded();
    nft::apply(&rules::host(uplink, guard)).map_err(HostError::Rules)?;
    if !is_on(FORWARD4) {
        set(FORWARD4, "1")?;
    }
    if ipv6 && !forwards6() {
        set(FORWARD6, "1")?;
    }
    Ok(())
}

/// Returns whether a worker of this host guards its forwarding.
fn is_guarded() -> bool {
    let mut in_ours = false;
    for line in nft::list(&["chains", "inet"]).lines() {
        let line = line.trim();
        if let Some(table) = line.strip_prefix("table inet ") {
            in_ours = table.starts_with(TABLES);
        }
        if in_ours && line.starts_with(&format!("chain {} ", rules::GUARD)) {
            return true;
        }
    }
    false
}

/// Removes the interface and the rules of the worker with this uplink, whoever left them. Turns forwarding off when the
/// last worker that had turned it on goes. Returns whether there was anything.
pub(super) fn clean(uplink: &Uplink) -> bool {
    let interface = remove_interface(uplink);
    let had_table = !nft::list(&["table", "inet", &uplink.table]).is_empty();
    if had_table {
        let guarded = is_guarded();
        if let Err(e) = nft::apply(&rules::no_host(uplink)) {
            tracing::warn!(table = uplink.table, error = %e, "rules stay on the host");
        }
        if guarded && !is_guarded() {
            // This restores the host's own setting: forwarding had been off.
            if let Err(e) = set(FORWARD4, "0") {
                tracing::warn!(error = %e, "the host goes on forwarding");
            }
        }
    }
    interface || had_table
}

fn remove_interface(uplink: &Uplink) -> bool {
    let mut batch = Batch::default();
    links::remove_named(&mut batch, &uplink.interface);
    let gone = |e: &NetlinkError| {
        matches!(
            e,
            NetlinkError::Refused { source, .. } if source.raw_os_error() == Some(libc::ENODEV)
        )
    };
    match open(NETLINK_ROUTE).and_then(|socket| batch.send(&socket)) {
        Ok(()) => true,
        Err(e) if gone(&e) => false,
        Err(e) => {
            tracing::warn!(interface = uplink.interface, error = %e, "an interface stays on the host");
            false
        }
    }
}

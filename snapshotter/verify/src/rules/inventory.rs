//! The inventory, and the namespaces of the processes: those of CRIU, which runs in the sandbox's.

use std::collections::{BTreeMap, BTreeSet};

use super::Context;
use crate::Images;
use crate::error::{EntryLocation, VerifyError};
use crate::frames::{magic, required};
use crate::messages::{Inventory, ObjectIds, TimeOffsets};

/// Written by CRIU 1.x to 4.2.
const VERSION: u32 = 2;
/// CRIU's number for leaving the network alone.
const NETWORK_LOCK_SKIP: u32 = 2;
const NANOSECONDS: u64 = 1_000_000_000;
/// CRIU's number of AppArmor; 1 is SELinux, 0 neither.
const APPARMOR: u32 = 2;
/// Maximum length of the name of a CRIU run.
const RUN_ID_MAX: usize = 64;

pub(super) fn check(images: &Images<'_>) -> Result<(Inventory, ObjectIds), VerifyError> {
    let (at, inventory) = required::<Inventory>(images, "inventory.img", magic::INVENTORY)?;
    let Inventory {
        img_version,
        fdinfo_per_id,
        root_ids,
        ns_per_id,
        root_cg_set: _,
        lsmtype,
        dump_uptime: _,
        pre_dump_mode,
        tcp_close,
        network_lock_method,
        plugins_entry: _,
        dump_criu_run_id,
        allow_uprobes,
    } = &inventory;
    at.hold(*img_version == VERSION, "img_version", img_version)?;
    at.hold(*fdinfo_per_id == Some(true), "fdinfo_per_id", fdinfo_per_id)?;
    at.hold(*ns_per_id == Some(true), "ns_per_id", ns_per_id)?;
    // Which security module the host has. Debian's has AppArmor. No process may have a profile of it.
    at.hold(lsmtype.unwrap_or(0) <= APPARMOR, "lsmtype", lsmtype)?;
    at.hold(pre_dump_mode.is_none(), "pre_dump_mode", pre_dump_mode)?;
    at.hold(*tcp_close == Some(true), "tcp_close", tcp_close)?;
    let is_skip = *network_lock_method == Some(NETWORK_LOCK_SKIP);
    at.hold(is_skip, "network_lock_method", network_lock_method)?;
    at.hold(!allow_uprobes.unwrap_or(false), "allow_uprobes", allow_uprobes)?;
    let plain = |id: &Vec<u8>| id.len() <= RUN_ID_MAX && id.iter().all(|c| c.is_ascii_hexdigit() || *c == b'-');
    at.hold(
        dump_criu_run_id.as_ref().is_none_or(plain),
        "dump_criu_run_id",
        dump_criu_run_id,
    )?;
    let own = root_ids
        .clone()
        .ok_or_else(|| at.refuse("root_ids", None::<ObjectIds>))?;
    for (name, id) in namespaces(&own).into_iter().chain([("time_ns_id", own.time_ns_id)]) {
        at.hold(id.is_some_and(|id| id != 0), name, id)?;
    }
    Ok((inventory, own))
}

/// The namespaces that must be CRIU's own: all except the time namespace.
fn namespaces(ids: &ObjectIds) -> [(&'static str, Option<u32>); 7] {
    [
        ("pid_ns_id", ids.pid_ns_id),
        ("net_ns_id", ids.net_ns_id),
        ("ipc_ns_id", ids.ipc_ns_id),
        ("uts_ns_id", ids.uts_ns_id),
        ("mnt_ns_id", ids.mnt_ns_id),
        ("user_ns_id", ids.user_ns_id),
        ("cgroup_ns_id", ids.cgroup_ns_id),
    ]
}

/// The ids of living processes, by process, and the clocks, by the number of their image.
///
/// A restored process is in its own time namespace. All processes are in the same one. The image of its clocks is named
/// by its id, or by 0 if it is CRIU's own.
#[expect(clippy::type_complexity, reason = "two maps")]
pub(super) fn check_ids(
    context: Context<'_>,
) -> Result<(BTreeMap<u32, ObjectIds>, BTreeMap<u32, TimeOffsets>), VerifyError> {
    let (mut found, mut times) = (BTreeMap::new(), BTreeSet::new());
    for pid in context.tree.living() {
        let (at, ids) = required::<ObjectIds>(context.images, &format!("ids-{pid}.img"), magic::IDS)?;
        for ((name, id), (_, own)) in namespaces(&ids).into_iter().zip(namespaces(context.own)) {
            at.hold(id == own, name, id)?;
        }
        let time = ids.time_ns_id.filter(|id| *id != 0);
        times.insert(time.ok_or_else(|| at.refuse("time_ns_id", ids.time_ns_id))?);
        at.hold(times.len() == 1, "time_ns_id", ids.time_ns_id)?;
        // Otherwise CRIU would take them for its own memory or files.
        at.hold(ids.vm_id != context.own.vm_id, "vm_id", ids.vm_id)?;
        at.hold(ids.files_id != context.own.files_id, "files_id", ids.files_id)?;
        found.insert(pid, ids);
    }
    let own = context.own.time_ns_id;
    let image = times.first().copied().filter(|time| Some(*time) != own).unwrap_or(0);
    let (at, offsets) = required::<TimeOffsets>(context.images, &format!("timens-{image}.img"), magic::TIME)?;
    check_offsets(at, &offsets)?;
    Ok((found, BTreeMap::from([(image, offsets)])))
}

fn check_offsets(at: EntryLocation<'_>, offsets: &TimeOffsets) -> Result<(), VerifyError> {
    for (field, time) in [("monotonic", &offsets.monotonic), ("boottime", &offsets.boottime)] {
        // The kernel rejects clocks that would overflow within 146 years.
        let sane = time.tv_nsec < NANOSECONDS && time.tv_sec < i64::MAX.cast_unsigned() / NANOSECONDS / 2;
        at.hold(sane, field, time)?;
    }
    Ok(())
}

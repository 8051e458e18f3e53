//! A thread's user and privileges: the expected user, and no privileges.

use crate::error::{EntryLocation, VerifyError};
use crate::expected::Expected;
use crate::messages::Credentials;

/// No capability, as CRIU writes it: it reads this many words.
const NO_CAPABILITIES: [u32; 2] = [0; 2];

pub(super) fn check(expected: &Expected, at: EntryLocation<'_>, creds: &Credentials) -> Result<(), VerifyError> {
    let Credentials {
        uid,
        gid,
        euid,
        egid,
        suid,
        sgid,
        fsuid,
        fsgid,
        cap_inh,
        cap_prm,
        cap_eff,
        cap_bnd,
        secbits,
        groups,
        lsm_profile,
        lsm_sockcreate,
        apparmor_data,
        no_new_privs,
        cap_amb,
    } = creds;
    let users = [("uid", uid), ("euid", euid), ("suid", suid), ("fsuid", fsuid)];
    for (field, id) in users {
        at.hold(*id == expected.uid, field, id)?;
    }
    for (field, id) in [("gid", gid), ("egid", egid), ("sgid", sgid), ("fsgid", fsgid)] {
        at.hold(*id == expected.gid, field, id)?;
    }
    at.hold(*groups == expected.groups, "groups", groups)?;
    for (field, capabilities) in [
        ("cap_inh", cap_inh),
        ("cap_prm", cap_prm),
        ("cap_eff", cap_eff),
        ("cap_bnd", cap_bnd),
        ("cap_amb", cap_amb),
    ] {
        at.hold(*capabilities == NO_CAPABILITIES, field, capabilities)?;
    }
    at.hold(*secbits == 0, "secbits", secbits)?;
    at.hold(*no_new_privs == Some(1), "no_new_privs", no_new_privs)?;
    at.hold(lsm_profile.is_none(), "lsm_profile", lsm_profile)?;
    at.hold(lsm_sockcreate.is_none(), "lsm_sockcreate", lsm_sockcreate)?;
    at.hold(apparmor_data.is_none(), "apparmor_data", apparmor_data)
}

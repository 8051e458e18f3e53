//! The packet filter of one sandbox. It replaces the constant address with the sandbox's own where packets leave, and
//! limits connections. It is written as messages to the kernel, since `nft` would cost each sandbox some milliseconds
//! of processor time. As `nft` shows it:
//!
//! ```text
//! table inet rekindle {
//!     chain raw { type filter hook output priority raw;       oif "lo" notrack }
//!     chain limit { type filter hook output priority filter;
//!         oif "eth0" ct state new limit rate over N/second burst 2N packets goto refuse
//!         oif "eth0" ct state new ct count over M goto refuse
//!     }
//!     chain refuse {
//!         meta l4proto tcp reject with tcp reset
//!         reject with icmpx admin-prohibited
//!     }
//!     chain leave { type nat hook postrouting priority srcnat;
//!         meta nfproto ipv4 oif "eth0" snat ip to ADDRESS
//!         meta nfproto ipv6 oif "eth0" snat ip6 to ADDRESS6
//!     }
//! }
//! ```

use super::attributes::Attributes;
use super::netlink::Batch;
use super::plan::{INSIDE_INDEX, Slot};
use super::settings::EgressLimits;

const TABLE: &str = "rekindle";
/// `NFNL_SUBSYS_NFTABLES`.
const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const NEW_TABLE: u16 = SUBSYSTEM << 8;
const NEW_CHAIN: u16 = SUBSYSTEM << 8 | 3;
const NEW_RULE: u16 = SUBSYSTEM << 8 | 6;
const CREATE: u16 = netlink_packet_core::NLM_F_CREATE;
const APPEND: u16 = netlink_packet_core::NLM_F_APPEND;

/// `NFPROTO_*`.
const INET: u8 = 1;
const IPV4: u8 = 2;
const IPV6: u8 = 10;
/// Hooks on a packet's path.
const OUTPUT: u32 = 3;
const POSTROUTING: u32 = 4;
/// The loopback's interface number in each network namespace.
const LOOPBACK_INDEX: u32 = 1;
/// A register of 16 bytes.
const REGISTER: u32 = 1;

/// Adds the whole table to `batch`.
pub(super) fn table(batch: &mut Batch, slot: &Slot, limits: &EgressLimits) {
    edge(batch, BATCH_BEGIN);
    let named = Attributes::default().text(1, TABLE);
    message(batch, "make a sandbox's packet filter", NEW_TABLE, CREATE, &named);
    chain(batch, "refuse", None);
    rule(batch, "refuse", &[is_protocol(libc::IPPROTO_TCP), vec![reset()]]);
    rule(batch, "refuse", &[vec![prohibited()]]);
    chain(batch, "raw", Some(("filter", OUTPUT, -300)));
    rule(
        batch,
        "raw",
        &[leaves_by(LOOPBACK_INDEX), vec![("notrack", Attributes::default())]],
    );
    chain(batch, "limit", Some(("filter", OUTPUT, 0)));
    for limit in [per_second(limits.new_connections), at_once(limits.connections)] {
        rule(
            batch,
            "limit",
            &[leaves_by(INSIDE_INDEX), is_new(), vec![limit, goto("refuse")]],
        );
    }
    chain(batch, "leave", Some(("nat", POSTROUTING, 100)));
    for (family, address) in [
        (IPV4, slot.address.octets().to_vec()),
        (IPV6, slot.address6.octets().to_vec()),
    ] {
        rule(
            batch,
            "leave",
            &[is_family(family), leaves_by(INSIDE_INDEX), becomes(family, &address)],
        );
    }
    edge(batch, BATCH_END);
}

type Expressions = Vec<(&'static str, Attributes)>;

fn edge(batch: &mut Batch, kind: u16) {
    let [high, low] = SUBSYSTEM.to_be_bytes();
    batch.raw("begin or end", kind, 0, &[0, 0, high, low], false);
}

fn message(batch: &mut Batch, what: &'static str, kind: u16, flags: u16, attributes: &Attributes) {
    let mut body = vec![INET, 0, 0, 0];
    body.extend(attributes.as_bytes());
    batch.raw(what, kind, flags, &body, true);
}

/// Creates a chain: a base chain with this type, hook and priority, or one that others jump to.
fn chain(batch: &mut Batch, name: &str, place: Option<(&str, u32, i32)>) {
    let mut chain = Attributes::default().text(1, TABLE).text(3, name);
    if let Some((kind, hook, priority)) = place {
        let place = Attributes::default()
            .number(1, hook)
            .number(2, priority.cast_unsigned());
        chain = chain.nested(4, &place).text(7, kind);
    }
    message(
        batch,
        "make a chain of a sandbox's packet filter",
        NEW_CHAIN,
        CREATE,
        &chain,
    );
}

fn rule(batch: &mut Batch, chain: &str, parts: &[Expressions]) {
    let mut all = Attributes::default();
    for (name, data) in parts.iter().flatten() {
        all = all.nested(1, &Attributes::default().text(1, name).nested(2, data));
    }
    let rule = Attributes::default().text(1, TABLE).text(2, chain).nested(4, &all);
    message(
        batch,
        "make a rule of a sandbox's packet filter",
        NEW_RULE,
        CREATE | APPEND,
        &rule,
    );
}

/// Compares the register with a value. The rule ends if they differ.
fn equals(value: &[u8]) -> (&'static str, Attributes) {
    compare(0, value)
}

fn compare(operator: u32, value: &[u8]) -> (&'static str, Attributes) {
    let data = Attributes::default().bytes(1, value);
    let compare = Attributes::default()
        .number(1, REGISTER)
        .number(2, operator)
        .nested(3, &data);
    ("cmp", compare)
}

fn meta(key: u32) -> (&'static str, Attributes) {
    ("meta", Attributes::default().number(1, REGISTER).number(2, key))
}

/// Matches packets that leave by the interface with this number.
fn leaves_by(index: u32) -> Expressions {
    const OIF: u32 = 5;
    vec![meta(OIF), equals(&index.to_ne_bytes())]
}

fn is_family(family: u8) -> Expressions {
    const NFPROTO: u32 = 15;
    vec![meta(NFPROTO), equals(&[family])]
}

fn is_protocol(protocol: i32) -> Expressions {
    const L4PROTO: u32 = 16;
    vec![meta(L4PROTO), equals(&protocol.to_ne_bytes()[..1])]
}

/// Matches the first packet of a connection.
fn is_new() -> Expressions {
    const STATE: u32 = 0;
    const NEW: u32 = 8;
    const DIFFERS: u32 = 1;
    let state = Attributes::default().number(1, REGISTER).number(2, STATE);
    let mask = Attributes::default()
        .number(1, REGISTER)
        .number(2, REGISTER)
        .number(3, 4)
        .nested(4, &Attributes::default().bytes(1, &NEW.to_ne_bytes()))
        .nested(5, &Attributes::default().bytes(1, &[0; 4]));
    vec![("ct", state), ("bitwise", mask), compare(DIFFERS, &[0; 4])]
}

/// Matches if more than `rate` of them came within a second.
fn per_second(rate: u32) -> (&'static str, Attributes) {
    const INVERTED: u32 = 1;
    let limit = Attributes::default()
        .bytes(1, &u64::from(rate).to_be_bytes())
        .bytes(2, &1_u64.to_be_bytes())
        .number(3, rate.saturating_mul(2))
        .number(4, 0)
        .number(5, INVERTED);
    ("limit", limit)
}

/// Matches if more than `count` are open.
fn at_once(count: u32) -> (&'static str, Attributes) {
    const INVERTED: u32 = 1;
    ("connlimit", Attributes::default().number(1, count).number(2, INVERTED))
}

/// Continues in another chain, for good.
fn goto(chain: &str) -> (&'static str, Attributes) {
    const VERDICT_REGISTER: u32 = 0;
    const GOTO: i32 = -4;
    let verdict = Attributes::default().number(1, GOTO.cast_unsigned()).text(2, chain);
    let data = Attributes::default().nested(2, &verdict);
    (
        "immediate",
        Attributes::default().number(1, VERDICT_REGISTER).nested(2, &data),
    )
}

/// Tells the sender that the packet is prohibited.
fn prohibited() -> (&'static str, Attributes) {
    const ICMPX: u32 = 2;
    const ADMIN_PROHIBITED: u8 = 3;
    (
        "reject",
        Attributes::default().number(1, ICMPX).bytes(2, &[ADMIN_PROHIBITED]),
    )
}

fn reset() -> (&'static str, Attributes) {
    const TCP_RESET: u32 = 1;
    ("reject", Attributes::default().number(1, TCP_RESET).bytes(2, &[0]))
}

/// Replaces the source address.
fn becomes(family: u8, address: &[u8]) -> Expressions {
    const SOURCE: u32 = 0;
    let value = Attributes::default()
        .number(1, REGISTER)
        .nested(2, &Attributes::default().bytes(1, address));
    let nat = Attributes::default()
        .number(1, SOURCE)
        .number(2, u32::from(family))
        .number(3, REGISTER);
    vec![("immediate", value), ("nat", nat)]
}

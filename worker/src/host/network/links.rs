//! Links, addresses, routes and neighbours, as messages of a batch. Neighbours are configured once and never looked up,
//! so no answer can be forged.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use ipnet::IpNet;
use netlink_packet_core::{DefaultNla, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, AddressScope};
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo,
    LinkMessage, State,
};
use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcOption};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::netlink::Batch;

pub(super) struct LinkEnd<'a> {
    pub name: &'a str,
    /// Interface number, if it must have a certain one.
    pub index: Option<u32>,
    pub mac: [u8; 6],
}

/// Creates a link from here into the namespace `there`. The end here is up; the other waits for [`up`].
pub(super) fn link(batch: &mut Batch, near: &LinkEnd<'_>, far: &LinkEnd<'_>, there: BorrowedFd<'_>) {
    let mut peer = end(far, LinkFlags::Noarp);
    peer.attributes.push(LinkAttribute::NetNsFd(there.as_raw_fd()));
    let mut message = end(near, LinkFlags::Up | LinkFlags::Noarp);
    message.attributes.push(LinkAttribute::LinkInfo(vec![
        LinkInfo::Kind(InfoKind::Veth),
        LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
    ]));
    let message = RouteNetlinkMessage::NewLink(message);
    batch.route("make a link to a sandbox", NLM_F_CREATE | NLM_F_EXCL, message);
}

fn end(end: &LinkEnd<'_>, flags: LinkFlags) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = end.index.unwrap_or(0);
    message.header.flags = flags;
    message.header.change_mask = flags;
    message.attributes = vec![
        LinkAttribute::IfName(end.name.to_owned()),
        LinkAttribute::Address(end.mac.to_vec()),
    ];
    message
}

/// Removes a link by the number of its end here. The other end disappears too.
pub(super) fn remove(batch: &mut Batch, index: u32) {
    let mut message = LinkMessage::default();
    message.header.index = index;
    batch.route("remove a link", 0, RouteNetlinkMessage::DelLink(message));
}

pub(super) fn remove_named(batch: &mut Batch, name: &str) {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::IfName(name.to_owned()));
    batch.route("remove a link", 0, RouteNetlinkMessage::DelLink(message));
}

/// Keeps the kernel from giving an interface an IPv6 address of its own. The interface must be down.
///
/// The setting in /proc/sys does the same for interfaces to come. But whoever writes it does so again and again,
/// without a pause, as long as anybody else changes any network of the host. That was 636 times for each restore, where
/// sandboxes end meanwhile. This message waits.
pub(super) fn no_own_address(batch: &mut Batch, index: u32) {
    let mode = AfSpecUnspec::Inet6(vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)]);
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.attributes = vec![LinkAttribute::AfSpecUnspec(vec![mode])];
    let message = RouteNetlinkMessage::SetLink(message);
    batch.route("keep an interface from having an address of its own", 0, message);
}

pub(super) fn up(batch: &mut Batch, index: u32) {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
    batch.route("bring up an interface", 0, RouteNetlinkMessage::SetLink(message));
}

/// Builds a request for an interface's state.
pub(super) fn look(index: u32) -> RouteNetlinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    RouteNetlinkMessage::GetLink(message)
}

/// Returns whether packets sent by the interface go out. After both its ends are up, the kernel still drops them for a
/// while: it notices the change in deferred work, which may have to wait.
pub(super) fn passes(answer: &RouteNetlinkMessage) -> bool {
    let RouteNetlinkMessage::NewLink(link) = answer else {
        return false;
    };
    link.attributes.contains(&LinkAttribute::OperState(State::Up))
}

/// Gives an interface an address that is usable at once.
pub(super) fn address(batch: &mut Batch, index: u32, address: IpAddr) {
    let mut message = AddressMessage::default();
    message.header.family = family(address);
    message.header.prefix_len = whole(address);
    message.header.scope = AddressScope::Universe;
    message.header.index = index;
    message.header.flags = AddressHeaderFlags::Nodad;
    message.attributes = vec![
        AddressAttribute::Local(address),
        AddressAttribute::Address(address),
        AddressAttribute::Flags(AddressFlags::Nodad),
    ];
    let message = RouteNetlinkMessage::NewAddress(message);
    batch.route("give an interface its address", NLM_F_CREATE | NLM_F_REPLACE, message);
}

/// Configures a neighbour's hardware address permanently.
pub(super) fn neighbour(batch: &mut Batch, index: u32, address: IpAddr, mac: [u8; 6]) {
    let mut message = NeighbourMessage::default();
    message.header.family = family(address);
    message.header.ifindex = index;
    message.header.state = NeighbourState::Permanent;
    message.header.kind = RouteType::Unicast;
    message.attributes = vec![
        NeighbourAttribute::Destination(match address {
            IpAddr::V4(four) => NeighbourAddress::Inet(four),
            IpAddr::V6(six) => NeighbourAddress::Inet6(six),
        }),
        NeighbourAttribute::LinkLayerAddress(mac.to_vec()),
    ];
    let message = RouteNetlinkMessage::NewNeighbour(message);
    batch.route("tell a neighbour's place", NLM_F_CREATE | NLM_F_REPLACE, message);
}

/// Routes packets for `network` to an interface: to a gateway on it, or directly.
pub(super) fn route(batch: &mut Batch, network: IpNet, index: u32, gateway: Option<IpAddr>) {
    let mut message = RouteMessage::default();
    message.header.address_family = family(network.addr());
    message.header.destination_prefix_length = network.prefix_len();
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    message.header.protocol = RouteProtocol::Static;
    message.header.kind = RouteType::Unicast;
    message.header.scope = if gateway.is_some() || network.addr().is_ipv6() {
        RouteScope::Universe
    } else {
        RouteScope::Link
    };
    message.attributes.push(RouteAttribute::Oif(index));
    if network.prefix_len() > 0 {
        message
            .attributes
            .push(RouteAttribute::Destination(RouteAddress::from(network.addr())));
    }
    if let Some(gateway) = gateway {
        message.header.flags = RouteFlags::Onlink;
        message
            .attributes
            .push(RouteAttribute::Gateway(RouteAddress::from(gateway)));
    }
    let message = RouteNetlinkMessage::NewRoute(message);
    batch.route("make a route", NLM_F_CREATE | NLM_F_EXCL, message);
}

/// Limits the packets that leave by an interface to `mbits` million bits a second.
pub(super) fn shape(batch: &mut Batch, index: u32, mbits: u32) {
    /// Bytes that may leave at once: a timer of a millisecond is fine enough up to some gigabits a second.
    const BURST: u32 = 256 * 1024;
    /// Maximum number of bytes that wait. Further packets are dropped.
    const QUEUE: u32 = 1024 * 1024;
    const PARAMETERS: u16 = 1;
    const BURST_BYTES: u16 = 6;
    const ETHERNET: u8 = 1;
    let rate = u32::try_from(u64::from(mbits) * 1_000_000 / 8).unwrap_or(u32::MAX);
    // struct tc_tbf_qopt: rate and peak rate (cell_log, linklayer, overhead, cell_align, mpu, rate), limit, buffer,
    // mtu.
    let mut parameters = vec![0, ETHERNET, 0, 0, 0, 0, 0, 0];
    parameters.extend(rate.to_ne_bytes());
    parameters.extend([0; 12]);
    for number in [QUEUE, 0, 0] {
        parameters.extend(number.to_ne_bytes());
    }
    let mut message = TcMessage::default();
    message.header.index = index.cast_signed();
    message.header.parent = TcHandle::ROOT;
    message.attributes = vec![
        TcAttribute::Kind("tbf".to_owned()),
        TcAttribute::Options(vec![
            TcOption::Other(DefaultNla::new(PARAMETERS, parameters)),
            TcOption::Other(DefaultNla::new(BURST_BYTES, BURST.to_ne_bytes().to_vec())),
        ]),
    ];
    let message = RouteNetlinkMessage::NewQueueDiscipline(message);
    batch.route("limit an interface's bandwidth", NLM_F_CREATE | NLM_F_REPLACE, message);
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    }
}

/// Returns the prefix length of a single address.
pub(super) fn whole(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

//! What the operator says of the way out.

use ipnet::IpNet;

/// The way out of a worker's sandboxes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Egress {
    /// Whether there is one; without, every function has a loopback and nothing else.
    pub enabled: bool,
    /// Networks that functions may reach although they are private.
    pub allow: Vec<IpNet>,
    /// Networks that they may not, beside those that are refused anyway.
    pub refuse: Vec<IpNet>,
    /// The cluster's own parts, `host:port`: refused, wherever they are.
    pub control: Vec<String>,
    /// Whether IPv6 is forwarded although the host did not forward it before.
    pub ipv6: bool,
    /// Limits of each instance.
    pub limits: EgressLimits,
}

impl Default for Egress {
    fn default() -> Self {
        Self {
            enabled: true,
            allow: Vec::new(),
            refuse: Vec::new(),
            control: Vec::new(),
            ipv6: false,
            limits: EgressLimits::default(),
        }
    }
}

/// What one instance may send and open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EgressLimits {
    /// Connections made within a second; twice as many at once. Questions to the name server count.
    pub new_connections: u32,
    /// Connections open at once.
    pub connections: u32,
    /// Bits a second in each direction, in millions; 0 for as many as there can be.
    pub mbits: u32,
}

impl Default for EgressLimits {
    fn default() -> Self {
        Self {
            new_connections: 100,
            connections: 512,
            mbits: 1_000,
        }
    }
}

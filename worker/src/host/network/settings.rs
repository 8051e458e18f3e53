//! The operator's settings for network egress.

use ipnet::IpNet;

/// Network egress of a worker's sandboxes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Egress {
    /// Whether there is any egress. Without it, every function has only a loopback.
    pub enabled: bool,
    /// Private networks that functions may reach.
    pub allow: Vec<IpNet>,
    /// Networks that they may not reach, in addition to those that are always refused.
    pub refuse: Vec<IpNet>,
    /// The cluster's own parts, `host:port`: refused, wherever they are.
    pub control: Vec<String>,
    /// Whether to forward IPv6 if the host did not forward it before.
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
    /// Bits a second in each direction, in millions; 0 for no limit.
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

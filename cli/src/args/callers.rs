//! The options of what callers may have of a gateway, and browsers of functions: `fn up` and `fn gateway` have them.

use clap::Args;
use ipnet::IpNet;
use rekindle_wire::manifest::ByteSize;

use super::egress::network;

/// What one caller may have, so that others are served too.
#[derive(Debug, Clone, Args)]
pub(crate) struct CallerArgs {
    /// A proxy before the gateway, or a network of such: its clients, as it names them in X-Forwarded-For, are told apart; may be repeated.
    #[arg(long, value_name = "CIDR", env = "FN_TRUSTED_PROXY", value_delimiter = ',', value_parser = network)]
    pub(crate) trusted_proxy: Vec<IpNet>,
    /// A network whose clients have no limits of their own; may be repeated.
    #[arg(long, value_name = "CIDR", env = "FN_CLIENT_EXEMPT", value_delimiter = ',', default_value = "127.0.0.0/8,::1/128", value_parser = network)]
    pub(crate) client_exempt: Vec<IpNet>,
    /// Connections that one client may have; 0 for no limit.
    #[arg(long, value_name = "N", env = "FN_CLIENT_CONNECTIONS", default_value_t = 1_024)]
    pub(crate) client_connections: u32,
    /// Requests that one client may have in flight; 0 for no limit.
    #[arg(long, value_name = "N", env = "FN_CLIENT_IN_FLIGHT", default_value_t = 512)]
    pub(crate) client_in_flight: u32,
    /// Requests that one client may send in a second, of which twice as many may come at once; 0 for no limit.
    #[arg(long, value_name = "N", env = "FN_CLIENT_RATE", default_value_t = 2_000)]
    pub(crate) client_rate: u32,
    /// Memory that requests' bodies may take together.
    #[arg(long, value_name = "SIZE", env = "FN_BODY_MEMORY", default_value = "256MiB")]
    pub(crate) body_memory: ByteSize,
    /// Let pages of functions below /function/ read each other's: for functions that trust each other. Without, browsers keep them apart.
    #[arg(long, env = "FN_TRUST_PATHS", conflicts_with = "no_paths")]
    pub(crate) trust_paths: bool,
    /// Serve functions by their hosts alone, and nothing below /function/.
    #[arg(long, env = "FN_NO_PATHS")]
    pub(crate) no_paths: bool,
}

impl CallerArgs {
    /// Sets a gateway's limits.
    pub(crate) fn limit(&self, config: &mut rekindle_gateway::Config) {
        config.clients = rekindle_gateway::ClientLimits {
            trusted_proxies: self.trusted_proxy.clone(),
            exempt: self.client_exempt.clone(),
            connections: self.client_connections,
            in_flight: self.client_in_flight,
            per_second: self.client_rate,
        };
        config.body_memory_bytes = self.body_memory.0;
        config.paths = match (self.no_paths, self.trust_paths) {
            (true, _) => rekindle_gateway::Paths::Off,
            (false, true) => rekindle_gateway::Paths::Trusted,
            (false, false) => rekindle_gateway::Paths::Apart,
        };
    }
}

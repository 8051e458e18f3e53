//! Options for what callers may use of a gateway, and browsers of functions, shared by `fn up` and `fn gateway`.

use clap::Args;
use ipnet::IpNet;
use rekindle_wire::function_config::ByteSize;

use super::egress::network;

/// Limits for one caller, so that others are served too.
#[derive(Debug, Clone, Args)]
pub(crate) struct CallerArgs {
    /// A proxy in front of the gateway, or a network of proxies. Its clients are distinguished as it names them in
    /// X-Forwarded-For. May be repeated.
    #[arg(long, value_name = "CIDR", env = "FN_TRUSTED_PROXY", value_delimiter = ',', value_parser = network)]
    pub(crate) trusted_proxy: Vec<IpNet>,
    /// A network whose clients have no limits of their own; may be repeated.
    #[arg(
        long,
        value_name = "CIDR",
        env = "FN_CLIENT_EXEMPT",
        value_delimiter = ',',
        default_value = "127.0.0.0/8,::1/128",
        value_parser = network
    )]
    pub(crate) client_exempt: Vec<IpNet>,
    /// Maximum connections of one client; 0 for no limit.
    #[arg(long, value_name = "N", env = "FN_CLIENT_CONNECTIONS", default_value_t = 1_024)]
    pub(crate) client_connections: u32,
    /// Maximum requests in flight of one client; 0 for no limit.
    #[arg(long, value_name = "N", env = "FN_CLIENT_IN_FLIGHT", default_value_t = 512)]
    pub(crate) client_in_flight: u32,
    /// Maximum requests of one client in a second, of which twice as many may come at once; 0 for no limit.
    #[arg(long, value_name = "N", env = "FN_CLIENT_RATE", default_value_t = 2_000)]
    pub(crate) client_rate: u32,
    /// Maximum memory for requests' bodies, over all requests.
    #[arg(long, value_name = "SIZE", env = "FN_BODY_MEMORY", default_value = "256MiB")]
    pub(crate) body_memory: ByteSize,
    /// Maximum size of a body that its function has in memory as a whole: of an event of a handler, or of Lambda's
    /// interface. Servers read bodies while they come, of any length.
    #[arg(long, value_name = "SIZE", env = "FN_MAX_BODY", default_value = "32MiB")]
    pub(crate) max_body: ByteSize,
    /// Let pages of functions below /function/ read each other's: for functions that trust each other. Without it,
    /// browsers isolate them.
    #[arg(long, env = "FN_TRUST_PATHS", conflicts_with = "no_paths")]
    pub(crate) trust_paths: bool,
    /// Serve functions only by their hosts, and nothing below /function/.
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
        config.max_body_bytes = self.max_body.0;
        config.paths = match (self.no_paths, self.trust_paths) {
            (true, _) => rekindle_gateway::Paths::Off,
            (false, true) => rekindle_gateway::Paths::Trusted,
            (false, false) => rekindle_gateway::Paths::Apart,
        };
    }
}

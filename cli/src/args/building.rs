//! The options of what builds of functions reach of the network: `fn up` and `fn worker` have them.

use clap::Args;
use rekindle_worker::build::{BuildNetwork, Host};

/// What installers of dependencies reach.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct BuildArgs {
    /// A registry or other host that builds may reach beside the public registries of pip and npm, wherever it is, for
    /// example pypi.example.org or 10.0.0.7:3141; without a port 443 and 80. May be repeated.
    #[arg(long, value_name = "HOST[:PORT]", env = "FN_BUILD_ALLOW", value_delimiter = ',')]
    pub(crate) build_allow: Vec<Host>,
    /// Have builds not reach the public registries.
    #[arg(long)]
    pub(crate) build_no_public: bool,
}

impl BuildArgs {
    /// The worker's setting.
    pub(crate) fn network(&self) -> BuildNetwork {
        BuildNetwork {
            public: !self.build_no_public,
            allow: self.build_allow.clone(),
        }
    }
}

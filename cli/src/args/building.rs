//! The options of what builds of functions may take, and reach of the network: `fn up` and `fn worker` have them.

use std::time::Duration;

use clap::Args;
use rekindle_wire::manifest::{ByteSize, parse_duration};
use rekindle_worker::deploy::build::{BuildLimits, BuildNetwork, Host};

/// What builds may take, and what installers of dependencies reach.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct BuildArgs {
    /// A registry or other host that builds may reach beside the public registries of pip and npm, wherever it is, for
    /// example pypi.example.org or 10.0.0.7:3141; without a port 443 and 80. May be repeated.
    #[arg(long, value_name = "HOST[:PORT]", env = "FN_BUILD_ALLOW", value_delimiter = ',')]
    pub(crate) build_allow: Vec<Host>,
    /// Have builds not reach the public registries.
    #[arg(long)]
    pub(crate) build_no_public: bool,
    /// Memory of one build; 2GiB where not given.
    #[arg(long, value_name = "SIZE", env = "FN_BUILD_MEMORY")]
    pub(crate) build_memory: Option<ByteSize>,
    /// Cores of one build; 1 where not given.
    #[arg(long, value_name = "CORES", env = "FN_BUILD_CPU", value_parser = cores)]
    pub(crate) build_cpu: Option<f64>,
    /// A function's folder with its dependencies, unpacked; 1GiB where not given. A build has three times as much disk.
    #[arg(long, value_name = "SIZE", env = "FN_BUILD_SIZE")]
    pub(crate) build_size: Option<ByteSize>,
    /// The files in that; 100000 where not given.
    #[arg(long, value_name = "COUNT", env = "FN_BUILD_FILES", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) build_files: Option<u64>,
    /// How long one run of pip or npm may take, for example 15m; 5 minutes where not given.
    #[arg(long, value_name = "DURATION", env = "FN_BUILD_TIMEOUT", value_parser = parse_duration)]
    pub(crate) build_timeout: Option<Duration>,
    /// Installed python packages kept for later builds; 4GiB where not given.
    #[arg(long, value_name = "SIZE", env = "FN_BUILD_CACHE")]
    pub(crate) build_cache: Option<ByteSize>,
}

impl BuildArgs {
    /// What a build may take, where the options do not say: [`BuildLimits::default`].
    pub(crate) fn limits(&self) -> BuildLimits {
        let mut limits = BuildLimits::default();
        if let Some(memory) = self.build_memory {
            limits.group.memory_bytes = memory.0;
        }
        if let Some(cpu) = self.build_cpu {
            limits.group.cpu_cores = cpu;
        }
        if let Some(size) = self.build_size {
            limits.unpacked_bytes = size.0;
        }
        if let Some(files) = self.build_files {
            limits.files = files;
        }
        if let Some(timeout) = self.build_timeout {
            limits.install_timeout = timeout;
        }
        if let Some(cache) = self.build_cache {
            limits.cache_bytes = cache.0;
        }
        limits
    }

    /// The worker's setting.
    pub(crate) fn network(&self) -> BuildNetwork {
        BuildNetwork {
            public: !self.build_no_public,
            allow: self.build_allow.clone(),
        }
    }
}

fn cores(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(cores) if (0.05..=64.0).contains(&cores) => Ok(cores),
        _ => Err("use 0.05 to 64 cores".to_owned()),
    }
}

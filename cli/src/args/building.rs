//! Options for the resources and the network of function builds, shared by `fn up` and `fn worker`.

use std::time::Duration;

use clap::Args;
use rekindle_wire::function_config::{ByteSize, parse_duration};
use rekindle_worker::deploy::build::{BuildLimits, BuildNetwork, Host};

/// Limits of builds, and the hosts that installers of dependencies may reach.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct BuildArgs {
    /// A registry or other host that builds may reach besides the public registries of pip and npm, for example
    /// pypi.example.org or 10.0.0.7:3141. It may be anywhere; without a port, 443 and 80 are used. May be repeated.
    #[arg(long, value_name = "HOST[:PORT]", env = "FN_BUILD_ALLOW", value_delimiter = ',')]
    pub(crate) build_allow: Vec<Host>,
    /// Keep builds from reaching the public registries.
    #[arg(long, env = "FN_BUILD_NO_PUBLIC")]
    pub(crate) build_no_public: bool,
    /// Memory of one build; by default 2GiB.
    #[arg(long, value_name = "SIZE", env = "FN_BUILD_MEMORY")]
    pub(crate) build_memory: Option<ByteSize>,
    /// Cores of one build; by default 1.
    #[arg(long, value_name = "CORES", env = "FN_BUILD_CPU", value_parser = cores)]
    pub(crate) build_cpu: Option<f64>,
    /// Size of a function's folder with its dependencies, unpacked; by default 1GiB. A build has three times as much
    /// disk.
    #[arg(long, value_name = "SIZE", env = "FN_BUILD_SIZE")]
    pub(crate) build_size: Option<ByteSize>,
    /// Number of files in that folder; by default 100000.
    #[arg(long, value_name = "COUNT", env = "FN_BUILD_FILES", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) build_files: Option<u64>,
    /// Limit for one run of pip or npm, for example 15m; by default 5 minutes.
    #[arg(long, value_name = "DURATION", env = "FN_BUILD_TIMEOUT", value_parser = parse_duration)]
    pub(crate) build_timeout: Option<Duration>,
    /// Installed python packages kept for later builds; by default 4GiB.
    #[arg(long, value_name = "SIZE", env = "FN_BUILD_CACHE")]
    pub(crate) build_cache: Option<ByteSize>,
}

impl BuildArgs {
    /// The limits of a build; [`BuildLimits::default`] where no option is given.
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

    /// The worker's network setting.
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

//! Options for how long unused instances are kept if their function does not say, shared by `fn up` and `fn scheduler`.

use std::time::Duration;

use clap::Args;
use rekindle_wire::function_config::parse_duration;

/// The retention policy.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct RetentionArgs {
    /// Bin width in which functions' idle times are counted. There are 240 bins, and the times for which unused
    /// instances are kept are multiples of it.
    #[arg(long, value_name = "DURATION", env = "FN_IDLE_BIN", default_value = "60s", value_parser = bin)]
    pub(crate) idle_bin: Duration,
}

fn bin(text: &str) -> Result<Duration, String> {
    match parse_duration(text) {
        Ok(bin) if bin >= Duration::from_millis(10) && bin <= Duration::from_secs(86_400) => Ok(bin),
        Ok(_) => Err("use 10ms to 24h".to_owned()),
        Err(e) => Err(e.to_string()),
    }
}

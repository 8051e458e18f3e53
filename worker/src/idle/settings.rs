//! The operator's settings for idle memory.

use std::str::FromStr;
use std::time::Duration;

use super::swap::IdleSwap;

/// The operator's settings for idle memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdleSettings {
    /// Where written pages go.
    pub swap: IdleSwap,
    /// How long a page must be untouched before it is evicted; zero to evict nothing.
    pub after: Duration,
    /// Who reports untouched pages.
    pub watch: IdleWatch,
}

impl Default for IdleSettings {
    fn default() -> Self {
        Self {
            swap: IdleSwap::default(),
            after: Duration::from_secs(30),
            watch: IdleWatch::default(),
        }
    }
}

/// How to learn what a running instance does not touch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum IdleWatch {
    /// From the kernel, if it can (DAMON), and from evicted pages that come back.
    #[default]
    Kernel,
    /// Only from evicted pages that come back.
    Eviction,
}

impl FromStr for IdleWatch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "kernel" => Ok(Self::Kernel),
            "eviction" => Ok(Self::Eviction),
            _ => Err("use kernel or eviction".to_owned()),
        }
    }
}

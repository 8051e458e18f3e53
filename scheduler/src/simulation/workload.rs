//! The functions of a simulation: how popular, how long, how large.

use std::sync::Arc;

use rekindle_wire::VersionNumber;
use rekindle_wire::function_config::{self, ByteSize, FunctionConfig};
use rekindle_wire::internal::{LayerRef, VersionSpec};
use rekindle_wire::processor::InstructionSets;

use super::Setup;
use super::random::{Random, Weighted};
use crate::catalog::LiveVersion;

#[derive(Debug)]
pub(super) struct Workload {
    pub(super) functions: Vec<Function>,
    pub(super) popularity: Weighted,
}

#[derive(Debug)]
pub(super) struct Function {
    pub(super) live: LiveVersion,
    /// Median duration of an invocation, milliseconds.
    median: f64,
}

impl Function {
    pub(super) fn duration(&self, random: &mut Random) -> f64 {
        random.lognormal(self.median, 1.0).clamp(1.0, 60_000.0)
    }
}

impl Workload {
    pub(super) fn new(setup: &Setup, random: &mut Random) -> Self {
        let functions = (0..setup.functions).map(|n| function(n, random));
        Self {
            functions: functions.collect(),
            popularity: Weighted::zipf(setup.functions, setup.skew),
        }
    }
}

fn function(n: usize, random: &mut Random) -> Function {
    let name = format!("f-{n}");
    let nothing = LayerRef {
        digest: String::new(),
        tar_bytes: 0,
    };
    let memory = [128, 256, 256, 512][random.below(4)] << 20;
    let spec = VersionSpec {
        config: FunctionConfig {
            memory: ByteSize(memory),
            concurrency: [1, 1, 1, 8][random.below(4)],
            max_instances: 1_000,
            // Three in ten are parked for a while when they are idle.
            park_ms: if random.share() < 0.3 { 600_000 } else { 0 },
            idle_ms: 60_000,
            ..plain(&name)
        },
        function: parsed(&name),
        version: VersionNumber(1),
        uid: 100_000,
        rootfs: nothing.clone(),
        layer: nothing,
        snapshot: Some(parsed(&format!("s-{n}"))),
        snapshot_digest: None,
        instruction_sets: InstructionSets::default(),
        reaper: false,
    };
    Function {
        live: LiveVersion { spec: Arc::new(spec) },
        median: random.lognormal(80.0, 1.0).clamp(2.0, 5_000.0),
    }
}

/// Parses a name made here, which is well formed.
pub(super) fn parsed<T: std::str::FromStr>(text: &str) -> T
where
    T::Err: std::fmt::Debug,
{
    match text.parse() {
        Ok(parsed) => parsed,
        Err(error) => panic!("{text}: {error:?}"),
    }
}

fn plain(name: &str) -> FunctionConfig {
    let text = format!("name = \"{name}\"\nruntime = \"python\"\nentry = \"main.handler\"\n");
    match function_config::parse(&text) {
        Ok(config) => config,
        Err(error) => panic!("{text}: {error}"),
    }
}

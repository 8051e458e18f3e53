//! Parses `fn.toml`, and checks everything that can be checked without running the function. An error names the line
//! and the fix.

mod advice;
mod callers;
mod raw;
mod start;
mod values;
mod warnings;

use std::ops::Range;

use toml::Spanned;

use super::{
    Asynchronous, BOOT_TIMEOUT_S, Base, ByteSize, FunctionConfig, Interface, Network, Runtime, check_callback, control,
    schedules, sources, yes,
};
use crate::destination::Destination;
#[cfg(test)]
pub(super) use advice::EXAMPLES;
use raw::{Raw, RawAsync, RawSnapshot, SnapshotName};
pub use warnings::warnings;

const MEMORY: Range<u64> = 16 << 20..(64 << 30) + 1;
const TMP: Range<u64> = 1 << 20..(16 << 30) + 1;
const TIMEOUT_S: Range<u64> = 1..901;
const IDLE_S: Range<u64> = 1..86_401;
const CONCURRENCY: Range<u64> = 1..1_001;
const INSTANCES: Range<u64> = 1..10_001;
const KEPT: Range<u64> = 0..1_001;
const PARK_S: Range<u64> = 0..604_801;
const ATTEMPTS: Range<u64> = 1..101;
const AGE_S: Range<u64> = 1..604_801;

/// Why a config was rejected: the place, the problem, and the fix.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("fn.toml{}: {message}", .line.map(|l| format!(", line {l}")).unwrap_or_default())]
pub struct FunctionConfigError {
    /// The line at fault, counted from 1, if there is one.
    pub line: Option<usize>,
    /// The problem and the fix.
    pub message: String,
}

/// Parses and validates the text of a `fn.toml`.
///
/// # Errors
/// If something is wrong: the first problem, with its line and what to write instead.
pub fn parse(text: &str) -> Result<FunctionConfig, FunctionConfigError> {
    let raw: Raw = toml::from_str(text).map_err(|e| {
        let line = e.span().map(|s| line_of(text, s.start));
        let mut message = e.message().trim().replace('\n', " ");
        if let Some(advice) = line.and_then(|line| advice::on(text, line, &message)) {
            message = format!("{message}: {advice}");
        }
        FunctionConfigError { line, message }
    })?;
    if let Some((key, path)) = control::find(text) {
        let line = text.lines().position(|l| l.contains(key.as_str())).map(|n| n + 1);
        let message = format!("{path} has a control character: remove it");
        return Err(FunctionConfigError { line, message });
    }
    Checker { text }.check(raw)
}

fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset.min(text.len())]
        .iter()
        .filter(|b| **b == b'\n')
        .count()
        + 1
}

struct Checker<'a> {
    text: &'a str,
}

impl Checker<'_> {
    fn refuse<T>(&self, at: Option<Range<usize>>, message: impl Into<String>) -> Result<T, FunctionConfigError> {
        Err(FunctionConfigError {
            line: at.map(|s| line_of(self.text, s.start)),
            message: message.into(),
        })
    }

    fn check(&self, raw: Raw) -> Result<FunctionConfig, FunctionConfigError> {
        let name = match raw.name.get_ref().parse() {
            Ok(name) => name,
            Err(e) => return self.refuse(Some(raw.name.span()), format!("{e}")),
        };
        let image = self.image(raw.image, raw.runtime.as_ref(), raw.base.as_ref())?;
        let (runtime, base) = match (&image, &raw.runtime) {
            (Some(_), _) => (Runtime::Http, Base::Base),
            (None, Some(runtime)) => self.runtime(runtime, raw.base)?,
            (None, None) => {
                return self.refuse(
                    None,
                    "runtime is missing: write runtime = \"python3.13\" or another of `fn runtimes list`, or image = \
                     \"REGISTRY/NAME:TAG\"",
                );
            }
        };
        let interface = self.interface(runtime, raw.interface)?;
        if let (Interface::Lambda, Some(port)) = (interface, &raw.port) {
            let message = "interface = \"lambda\" serves nothing on a port: remove the line";
            return self.refuse(Some(port.span()), message);
        }
        let (entry, command) = match (&image, raw.entry, raw.command) {
            (image, entry, command) if interface == Interface::Lambda => {
                self.start_lambda(image.is_some(), entry, command)?
            }
            // The image has a command of its own.
            (Some(_), None, None) => (None, Vec::new()),
            (_, entry, command) => self.start(runtime, entry, command)?,
        };
        let port = self.port(runtime, raw.port)?;
        let protocol = self.protocol(runtime, interface, raw.protocol)?;
        let memory = self.size("memory", raw.memory, ByteSize(256 << 20), &MEMORY)?;
        let tmp = self.size("tmp", raw.tmp, ByteSize(64 << 20), &TMP)?;
        let cpu = match raw.cpu {
            None => 1.0,
            Some(cpu) if (0.05..=64.0).contains(cpu.get_ref()) => *cpu.get_ref(),
            Some(cpu) => {
                return self.refuse(
                    Some(cpu.span()),
                    format!("cpu = {} is impossible: use 0.05 to 64 cores", cpu.get_ref()),
                );
            }
        };
        let (secrets, at_boot) = self.secrets(&raw.secrets, &raw.env)?;
        if let Some(span) = at_boot.clone().filter(|_| {
            let wants_one = !matches!(raw.snapshot, None | Some(RawSnapshot::Taken(false)));
            let parks = raw.min_parked.as_ref().is_some_and(|n| *n.get_ref() > 0);
            wants_one || parks || raw.fresh.as_ref().is_some_and(|fresh| *fresh.get_ref())
        }) {
            let message = "at = \"boot\" leaves out the snapshot, as that would hold the secret: remove snapshot, \
                           fresh and min_parked, or leave out at and read the secret after a restore";
            return self.refuse(Some(span), message);
        }
        let max_instances = self.count("max_instances", raw.max_instances, 10, &INSTANCES)?;
        let adaptive = raw.idle.is_none() && raw.park.is_none();
        let warm_at = raw.min_warm.as_ref().map(Spanned::span);
        let min_warm = self.count("min_warm", raw.min_warm, 0, &KEPT)?;
        let parked_at = raw.min_parked.as_ref().map(Spanned::span);
        let min_parked = self.count("min_parked", raw.min_parked, 0, &KEPT)?;
        if min_parked > max_instances {
            return self.refuse(
                parked_at,
                format!(
                    "min_parked = {min_parked} is more than max_instances = {max_instances}: lower it, \
                     or raise max_instances"
                ),
            );
        }
        if min_warm.saturating_add(min_parked) > max_instances {
            return self.refuse(
                warm_at,
                format!(
                    "min_warm = {min_warm} and min_parked = {min_parked} are more than \
                     max_instances = {max_instances}: lower one, or raise max_instances"
                ),
            );
        }
        if min_parked > 0 && raw.snapshot == Some(RawSnapshot::Taken(false)) {
            return self.refuse(
                parked_at,
                "min_parked needs snapshots, as parked instances are restored ahead: remove snapshot = false, \
                 or this line",
            );
        }
        let concurrent_at = raw.concurrency.as_ref().map(Spanned::span);
        let concurrency = self.count("concurrency", raw.concurrency, 1, &CONCURRENCY)?;
        if interface == Interface::Lambda && concurrency > 1 {
            let message = "interface = \"lambda\" has one invocation at a time: remove the line";
            return self.refuse(concurrent_at, message);
        }
        let (auth, jwt) = self.auth(raw.auth, raw.jwt)?;
        let allow = self.allow(auth, raw.allow)?;
        let fresh = raw.fresh.filter(|fresh| *fresh.get_ref());
        if let Some(fresh) = &fresh {
            if raw.snapshot == Some(RawSnapshot::Taken(false)) {
                let message = "fresh needs a snapshot, whose copies serve one invocation each: remove \
                               snapshot = false, or this line";
                return self.refuse(Some(fresh.span()), message);
            }
            if concurrency > 1 {
                let message = format!(
                    "fresh gives each invocation a copy of its own: remove concurrency = {concurrency}, or this line"
                );
                return self.refuse(Some(fresh.span()), message);
            }
        }
        Ok(FunctionConfig {
            name,
            runtime,
            interface,
            entry,
            command,
            image,
            port,
            protocol,
            base,
            memory,
            cpu,
            timeout_ms: self.seconds("timeout", raw.timeout, 30, &TIMEOUT_S)?,
            boot_timeout_ms: self.seconds("boot_timeout", raw.boot_timeout, BOOT_TIMEOUT_S, &TIMEOUT_S)?,
            concurrency,
            max_instances,
            idle_ms: self.seconds("idle", raw.idle, 300, &IDLE_S)?,
            park_ms: self.seconds("park", raw.park, 0, &PARK_S)?,
            adaptive,
            min_warm,
            min_parked,
            tmp,
            snapshot: at_boot.is_none() && raw.snapshot != Some(RawSnapshot::Taken(false)),
            unique: raw.snapshot == Some(RawSnapshot::Named(SnapshotName::Unique)),
            rehearse: raw.rehearse.unwrap_or_else(yes),
            fresh: fresh.is_some(),
            idempotent: raw.idempotent.unwrap_or_default(),
            auth,
            jwt,
            allow,
            cors: self.cors(raw.cors)?,
            network: self.network(raw.network)?,
            asynchronous: self.asynchronous(raw.asynchronous.unwrap_or_default())?,
            schedules: match schedules::checked(raw.schedule) {
                Ok(schedules) => schedules,
                Err(wrong) => return self.refuse(Some(wrong.at), wrong.message),
            },
            sources: match sources::checked(raw.source) {
                Ok(sources) => sources,
                Err(wrong) => return self.refuse(Some(wrong.at), wrong.message),
            },
            env: self.env(raw.env)?,
            secrets,
            warmup: self.warmup(raw.warmup)?,
            hooks: self.hooks(runtime, interface, raw.hooks)?,
            build_command: raw.build.map(|b| b.command),
        })
    }

    fn network(&self, value: Option<Spanned<String>>) -> Result<Network, FunctionConfigError> {
        match value.as_ref().map(|v| (v.get_ref().as_str(), v.span())) {
            None | Some(("egress", _)) => Ok(Network::Egress),
            Some(("none", _)) => Ok(Network::None),
            Some((other, span)) => self.refuse(
                Some(span),
                format!(
                    "network = \"{other}\" is not known: use \"egress\" (the world, but nothing private) \
                     or \"none\" (its own loopback)"
                ),
            ),
        }
    }

    fn asynchronous(&self, raw: RawAsync) -> Result<Asynchronous, FunctionConfigError> {
        let default = Asynchronous::default();
        let callback = match raw.callback {
            None => None,
            Some(url) => match check_callback(url.get_ref()) {
                Ok(()) => Some(url.into_inner()),
                Err(why) => return self.refuse(Some(url.span()), why),
            },
        };
        Ok(Asynchronous {
            max_attempts: self.count("max_attempts", raw.max_attempts, default.max_attempts, &ATTEMPTS)?,
            max_age_ms: self.seconds("max_age", raw.max_age, default.max_age_ms / 1_000, &AGE_S)?,
            callback,
            on_success: self.destination(raw.on_success)?,
            on_failure: self.destination(raw.on_failure)?,
        })
    }

    fn destination(&self, value: Option<Spanned<String>>) -> Result<Option<Destination>, FunctionConfigError> {
        let Some(text) = value else { return Ok(None) };
        match text.get_ref().parse() {
            Ok(destination) => Ok(Some(destination)),
            Err(why) => self.refuse(Some(text.span()), why),
        }
    }
}

//! Parses `fn.toml`, and checks everything that can be checked without running the function. An error names the line
//! and the fix.

use std::collections::BTreeMap;
use std::ops::Range;

use http::{HeaderName, HeaderValue};
use serde::Deserialize;
use toml::Spanned;

use crate::secret::{SECRETS_OF_FUNCTION_MAX, SecretName};

use super::schedules::{self, RawSchedule};
use super::{
    Asynchronous, Auth, BOOT_TIMEOUT_S, Base, ByteSize, Hooks, Interface, Manifest, Network, PORT, Protocol, Runtime,
    WarmupRequest, check_callback, control, interface, parse_duration, yes,
};

const MEMORY: Range<u64> = 16 << 20..(64 << 30) + 1;
const TMP: Range<u64> = 1 << 20..(16 << 30) + 1;
const TIMEOUT_S: Range<u64> = 1..901;
const IDLE_S: Range<u64> = 1..86_401;
const CONCURRENCY: Range<u64> = 1..1_001;
const INSTANCES: Range<u64> = 1..10_001;
const KEPT: Range<u64> = 0..1_001;
const PARK_S: Range<u64> = 0..604_801;
const PORTS: Range<u64> = 1..65_536;
/// Maximum length of an image's name in bytes.
const IMAGE_MAX: usize = 512;
const WARMUP_MAX: usize = 20;
/// Headers of a warm-up request that the platform sets.
const OWN_HEADERS: [&str; 5] = [
    "content-length",
    "transfer-encoding",
    "connection",
    "upgrade",
    "x-request-id",
];
/// `MAX_ARG_STRLEN` of the kernel, in bytes.
const VARIABLE_MAX: usize = 128 << 10;
const ATTEMPTS: Range<u64> = 1..101;
const AGE_S: Range<u64> = 1..604_801;

/// Why a manifest was rejected: the place, the problem, and the fix.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("fn.toml{}: {message}", .line.map(|l| format!(", line {l}")).unwrap_or_default())]
pub struct ManifestError {
    /// The line at fault, counted from 1, if there is one.
    pub line: Option<usize>,
    /// The problem and the fix.
    pub message: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    name: Spanned<String>,
    runtime: Option<Spanned<String>>,
    image: Option<Spanned<String>>,
    interface: Option<Spanned<String>>,
    port: Option<Spanned<u64>>,
    protocol: Option<Spanned<String>>,
    entry: Option<Spanned<String>>,
    command: Option<Spanned<Vec<String>>>,
    base: Option<Spanned<Base>>,
    memory: Option<Spanned<String>>,
    cpu: Option<Spanned<f64>>,
    timeout: Option<Spanned<String>>,
    boot_timeout: Option<Spanned<String>>,
    concurrency: Option<Spanned<u64>>,
    max_instances: Option<Spanned<u64>>,
    idle: Option<Spanned<String>>,
    park: Option<Spanned<String>>,
    min_warm: Option<Spanned<u64>>,
    min_parked: Option<Spanned<u64>>,
    tmp: Option<Spanned<String>>,
    snapshot: Option<RawSnapshot>,
    rehearse: Option<bool>,
    fresh: Option<Spanned<bool>>,
    idempotent: Option<bool>,
    auth: Option<Spanned<String>>,
    network: Option<Spanned<String>>,
    #[serde(rename = "async")]
    asynchronous: Option<RawAsync>,
    #[serde(default)]
    schedule: Vec<RawSchedule>,
    #[serde(default)]
    env: BTreeMap<String, Spanned<String>>,
    #[serde(default)]
    secrets: Vec<Spanned<RawSecret>>,
    #[serde(default)]
    warmup: Vec<Spanned<WarmupRequest>>,
    hooks: Option<Spanned<Hooks>>,
    build: Option<RawBuild>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawAsync {
    max_attempts: Option<Spanned<u64>>,
    max_age: Option<Spanned<String>>,
    callback: Option<Spanned<String>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "invalid type: it is true, false or \"unique\"")]
enum RawSnapshot {
    Taken(bool),
    Named(SnapshotName),
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SnapshotName {
    Unique,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "invalid type: a secret is its name, or { name = \"NAME\", at = \"boot\" }"
)]
enum RawSecret {
    Name(String),
    At { name: String, at: SecretTime },
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SecretTime {
    Boot,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawBuild {
    command: String,
}

/// Parses and validates the text of a `fn.toml`.
///
/// # Errors
/// If something is wrong: the first problem, with its line and what to write instead.
pub fn parse(text: &str) -> Result<Manifest, ManifestError> {
    let raw: Raw = toml::from_str(text).map_err(|e| {
        let line = e.span().map(|s| line_of(text, s.start));
        let mut message = e.message().trim().replace('\n', " ");
        // A value of another type. In other cases, toml's message states what it expects.
        if message.starts_with("invalid type")
            && let Some(example) = line.and_then(|n| example(text.lines().nth(n - 1)?))
        {
            message = format!("{message}: write it as in `{example}`");
        }
        ManifestError { line, message }
    })?;
    if let Some((key, path)) = control::find(text) {
        let line = text.lines().position(|l| l.contains(key.as_str())).map(|n| n + 1);
        let message = format!("{path} has a control character: remove it");
        return Err(ManifestError { line, message });
    }
    Checker { text }.check(raw)
}

/// An example of the key that this line sets.
fn example(line: &str) -> Option<&'static str> {
    let key = line.split_once('=')?.0.trim();
    let word = |example: &&&'static str| example.split(" =").next() == Some(key);
    EXAMPLES.iter().find(word).copied()
}

pub(super) const EXAMPLES: &[&str] = &[
    r#"name = "hello""#,
    r#"runtime = "python""#,
    r#"image = "./image.tar""#,
    r#"interface = "lambda""#,
    "port = 8080",
    r#"protocol = "h2c""#,
    r#"entry = "main.handler""#,
    r#"command = ["./server", "--quiet"]"#,
    r#"memory = "256MiB""#,
    "cpu = 0.5",
    r#"timeout = "30s""#,
    r#"boot_timeout = "5m""#,
    "concurrency = 1",
    "max_instances = 10",
    r#"idle = "10m""#,
    r#"park = "1h""#,
    "min_warm = 1",
    "min_parked = 1",
    r#"tmp = "64MiB""#,
    "snapshot = true",
    "rehearse = true",
    "fresh = true",
    "idempotent = true",
    r#"auth = "key""#,
    r#"network = "egress""#,
    r#"secrets = ["DB_URL"]"#,
    "max_attempts = 3",
    r#"max_age = "1h""#,
    r#"cron = "*/5 * * * *""#,
    r#"timezone = "Europe/Berlin""#,
    r#"overlap = "skip""#,
    r#"missed = "once""#,
];

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
    fn refuse<T>(&self, at: Option<Range<usize>>, message: impl Into<String>) -> Result<T, ManifestError> {
        Err(ManifestError {
            line: at.map(|s| line_of(self.text, s.start)),
            message: message.into(),
        })
    }

    fn check(&self, raw: Raw) -> Result<Manifest, ManifestError> {
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
        Ok(Manifest {
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
            auth: self.auth(raw.auth)?,
            network: self.network(raw.network)?,
            asynchronous: self.asynchronous(raw.asynchronous.unwrap_or_default())?,
            schedules: match schedules::checked(raw.schedule) {
                Ok(schedules) => schedules,
                Err(wrong) => return self.refuse(Some(wrong.at), wrong.message),
            },
            env: self.env(raw.env)?,
            secrets,
            warmup: self.warmup(raw.warmup)?,
            hooks: self.hooks(runtime, interface, raw.hooks)?,
            build_command: raw.build.map(|b| b.command),
        })
    }

    fn interface(&self, runtime: Runtime, name: Option<Spanned<String>>) -> Result<Interface, ManifestError> {
        match name.as_ref().map(|name| (name.get_ref().as_str(), name.span())) {
            None | Some(("http", _)) => Ok(Interface::Http),
            Some(("lambda", _)) if runtime == Runtime::Http => Ok(Interface::Lambda),
            Some(("lambda", span)) => self.refuse(
                Some(span),
                "interface = \"lambda\" is for images and runtime = \"http\" only, as python and node call handlers \
                 themselves: remove the line",
            ),
            Some((other, span)) => self.refuse(
                Some(span),
                format!("interface = \"{other}\" is not known: use \"http\" (the default) or \"lambda\""),
            ),
        }
    }

    /// The handler and the command of a function that has Lambda's interface.
    fn start_lambda(
        &self,
        is_image: bool,
        entry: Option<Spanned<String>>,
        command: Option<Spanned<Vec<String>>>,
    ) -> Result<(Option<String>, Vec<String>), ManifestError> {
        let command = match command {
            Some(command) => self.start(Runtime::Http, None, Some(command))?.1,
            None if is_image => Vec::new(),
            None => vec![interface::BOOTSTRAP.to_owned()],
        };
        match entry {
            Some(entry) if entry.get_ref().is_empty() || entry.get_ref().contains(char::is_whitespace) => self.refuse(
                Some(entry.span()),
                format!(
                    "entry = \"{}\" is not a handler: write what _HANDLER shall be",
                    entry.get_ref()
                ),
            ),
            entry => Ok((entry.map(Spanned::into_inner), command)),
        }
    }

    fn start(
        &self,
        runtime: Runtime,
        entry: Option<Spanned<String>>,
        command: Option<Spanned<Vec<String>>>,
    ) -> Result<(Option<String>, Vec<String>), ManifestError> {
        match (runtime, entry, command) {
            (Runtime::Http, None, Some(command)) if !command.get_ref().is_empty() => {
                if command.get_ref().iter().any(|a| a.contains('\0')) {
                    return self.refuse(Some(command.span()), "command contains a NUL character: remove it");
                }
                Ok((None, command.into_inner()))
            }
            (Runtime::Http, Some(entry), _) => self.refuse(
                Some(entry.span()),
                "runtime \"http\" has no entry: write command = [\"./server\"], which must serve HTTP on $PORT",
            ),
            (Runtime::Http, None, _) => self.refuse(
                None,
                "runtime \"http\" needs command = [\"./server\"], which must serve HTTP on $PORT",
            ),
            (_, _, Some(command)) => self.refuse(
                Some(command.span()),
                "command is for runtime = \"http\" only: write entry = \"file.function\" instead",
            ),
            (_, Some(entry), None) => {
                let text = entry.get_ref();
                let good = text.rsplit_once('.').is_some_and(|(file, function)| {
                    !file.is_empty()
                        && !function.is_empty()
                        && !file.starts_with('/')
                        && !file.split(['/', '.']).any(str::is_empty)
                        && text.chars().all(|c| c.is_ascii_alphanumeric() || "_./$-".contains(c))
                });
                if good {
                    Ok((Some(entry.into_inner()), Vec::new()))
                } else {
                    self.refuse(
                        Some(entry.span()),
                        format!(
                            "entry = \"{text}\" is not a handler: write \"file.function\", for example \"main.handler\""
                        ),
                    )
                }
            }
            (_, None, None) => self.refuse(
                None,
                "entry is missing: write entry = \"file.function\", for example \"main.handler\"",
            ),
        }
    }

    fn image(
        &self,
        image: Option<Spanned<String>>,
        runtime: Option<&Spanned<String>>,
        base: Option<&Spanned<Base>>,
    ) -> Result<Option<String>, ManifestError> {
        let Some(image) = image else {
            return Ok(None);
        };
        let beside = runtime.map(Spanned::span).or_else(|| base.map(Spanned::span));
        if let Some(span) = beside {
            return self.refuse(
                Some(span),
                "an image brings its own runtime and root filesystem: remove this line, or image",
            );
        }
        let text = image.get_ref();
        let good =
            (1..=IMAGE_MAX).contains(&text.len()) && !text.contains(char::is_whitespace) && !text.starts_with('-');
        if !good {
            return self.refuse(
                Some(image.span()),
                format!(
                    "image = \"{text}\" is not the name of an image: write \"REGISTRY/NAME:TAG\", or a path that \
                     begins with ./"
                ),
            );
        }
        Ok(Some(image.into_inner()))
    }

    fn port(&self, runtime: Runtime, port: Option<Spanned<u64>>) -> Result<u16, ManifestError> {
        match port {
            None => Ok(PORT),
            Some(port) if runtime != Runtime::Http => self.refuse(
                Some(port.span()),
                "port is for images and runtime = \"http\" only: remove the line",
            ),
            Some(port) => match u16::try_from(*port.get_ref()) {
                Ok(number) if PORTS.contains(port.get_ref()) => Ok(number),
                _ => self.refuse(
                    Some(port.span()),
                    format!(
                        "port = {} is impossible: use {} to {}",
                        port.get_ref(),
                        PORTS.start,
                        PORTS.end - 1
                    ),
                ),
            },
        }
    }

    fn protocol(
        &self,
        runtime: Runtime,
        interface: Interface,
        protocol: Option<Spanned<String>>,
    ) -> Result<Protocol, ManifestError> {
        let Some(protocol) = protocol else {
            return Ok(Protocol::default());
        };
        let refused = match protocol.get_ref().as_str() {
            _ if runtime != Runtime::Http => {
                "protocol is for images and runtime = \"http\" only: remove the line".to_owned()
            }
            _ if interface == Interface::Lambda => "interface = \"lambda\" serves nothing: remove the line".to_owned(),
            "http1" => return Ok(Protocol::Http1),
            "h2c" => return Ok(Protocol::H2c),
            other => format!("protocol = \"{other}\" is not known: use \"http1\" (the default) or \"h2c\""),
        };
        self.refuse(Some(protocol.span()), refused)
    }

    fn runtime(&self, name: &Spanned<String>, base: Option<Spanned<Base>>) -> Result<(Runtime, Base), ManifestError> {
        let text = name.get_ref().as_str();
        match (
            Base::of_runtime(text).and_then(|base| Some((base.runtime()?, base))),
            base,
        ) {
            (None, base) if text == "http" => Ok((Runtime::Http, base.map_or(Base::Base, Spanned::into_inner))),
            (None, _) => {
                let interpreters = Base::ALL.into_iter().filter_map(Base::interpreter);
                let known: Vec<_> = interpreters.map(|interpreter| interpreter.versioned).collect();
                self.refuse(
                    Some(name.span()),
                    format!("runtime = \"{text}\" is not known: use http, {}", known.join(", ")),
                )
            }
            (_, Some(base)) => self.refuse(
                Some(base.span()),
                "base is for runtime = \"http\" only: remove the line",
            ),
            (Some(found), None) => Ok(found),
        }
    }

    fn auth(&self, value: Option<Spanned<String>>) -> Result<Auth, ManifestError> {
        match value.as_ref().map(|v| (v.get_ref().as_str(), v.span())) {
            None | Some(("none", _)) => Ok(Auth::None),
            Some(("key", _)) => Ok(Auth::Key),
            Some((other, span)) => self.refuse(
                Some(span),
                format!("auth = \"{other}\" is not known: use \"none\" (the default) or \"key\""),
            ),
        }
    }

    fn network(&self, value: Option<Spanned<String>>) -> Result<Network, ManifestError> {
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

    fn asynchronous(&self, raw: RawAsync) -> Result<Asynchronous, ManifestError> {
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
        })
    }

    fn size(
        &self,
        key: &str,
        value: Option<Spanned<String>>,
        default: ByteSize,
        range: &Range<u64>,
    ) -> Result<ByteSize, ManifestError> {
        let Some(value) = value else {
            return Ok(default);
        };
        match value.get_ref().parse::<ByteSize>() {
            Ok(size) if range.contains(&size.0) => Ok(size),
            Ok(size) => self.refuse(
                Some(value.span()),
                format!(
                    "{key} = \"{size}\" is impossible: use \"{}\" to \"{}\"",
                    ByteSize(range.start),
                    ByteSize(range.end - 1)
                ),
            ),
            Err(e) => self.refuse(Some(value.span()), format!("{key}: {e}")),
        }
    }

    /// The value in milliseconds. `default` and `range` are in seconds.
    fn seconds(
        &self,
        key: &str,
        value: Option<Spanned<String>>,
        default: u64,
        range: &Range<u64>,
    ) -> Result<u64, ManifestError> {
        let Some(value) = value else {
            return Ok(default * 1_000);
        };
        match parse_duration(value.get_ref()) {
            Ok(d) => match u64::try_from(d.as_millis()) {
                Ok(ms) if (range.start * 1_000..=(range.end - 1) * 1_000).contains(&ms) => Ok(ms),
                _ => self.refuse(
                    Some(value.span()),
                    format!(
                        "{key} = \"{}\" is impossible: use \"{}s\" to \"{}s\"",
                        value.get_ref(),
                        range.start,
                        range.end - 1
                    ),
                ),
            },
            Err(e) => self.refuse(Some(value.span()), format!("{key}: {e}")),
        }
    }

    fn count(
        &self,
        key: &str,
        value: Option<Spanned<u64>>,
        default: u32,
        range: &Range<u64>,
    ) -> Result<u32, ManifestError> {
        match value {
            None => Ok(default),
            Some(v) => match u32::try_from(*v.get_ref()) {
                Ok(n) if range.contains(v.get_ref()) => Ok(n),
                _ => self.refuse(
                    Some(v.span()),
                    format!(
                        "{key} = {} is impossible: use {} to {}",
                        v.get_ref(),
                        range.start,
                        range.end - 1
                    ),
                ),
            },
        }
    }

    fn env(&self, env: BTreeMap<String, Spanned<String>>) -> Result<BTreeMap<String, String>, ManifestError> {
        let mut out = BTreeMap::new();
        for (key, value) in env {
            let good = key.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
                && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            if !good {
                return self.refuse(
                    Some(value.span()),
                    format!("env: \"{key}\" is not a variable name: use letters, digits and '_'"),
                );
            }
            if key == "PORT" || key.starts_with("FN_") {
                return self.refuse(
                    Some(value.span()),
                    format!("env: {key} is set by the platform: choose another name"),
                );
            }
            // With `=` and the byte that ends it.
            if key.len() + value.get_ref().len() + 2 > VARIABLE_MAX {
                return self.refuse(
                    Some(value.span()),
                    format!(
                        "env: {key} is longer than the kernel takes, {} KiB: put it into a file of the folder",
                        VARIABLE_MAX >> 10
                    ),
                );
            }
            out.insert(key, value.into_inner());
        }
        Ok(out)
    }

    /// The secrets, and the place of one that is needed at the boot.
    fn secrets(
        &self,
        secrets: &[Spanned<RawSecret>],
        env: &BTreeMap<String, Spanned<String>>,
    ) -> Result<(Vec<SecretName>, Option<Range<usize>>), ManifestError> {
        if let Some(extra) = secrets.get(SECRETS_OF_FUNCTION_MAX) {
            let message = format!("more than {SECRETS_OF_FUNCTION_MAX} secrets: put several values into one");
            return self.refuse(Some(extra.span()), message);
        }
        let (mut names, mut at_boot) = (Vec::new(), None);
        for secret in secrets {
            let text = match secret.get_ref() {
                RawSecret::Name(text) => text,
                RawSecret::At { name, at } => {
                    at_boot = (*at == SecretTime::Boot).then(|| secret.span());
                    name
                }
            };
            let name: SecretName = match text.parse() {
                Ok(name) => name,
                Err(e) => return self.refuse(Some(secret.span()), format!("{e}")),
            };
            if names.contains(&name) || env.contains_key(text) {
                let message = format!("{name} is named twice in secrets and env: name it once");
                return self.refuse(Some(secret.span()), message);
            }
            names.push(name);
        }
        Ok((names, at_boot))
    }

    fn warmup(&self, requests: Vec<Spanned<WarmupRequest>>) -> Result<Vec<WarmupRequest>, ManifestError> {
        if let Some(extra) = requests.get(WARMUP_MAX) {
            return self.refuse(
                Some(extra.span()),
                format!("more than {WARMUP_MAX} warm-up requests: remove some"),
            );
        }
        for request in &requests {
            let r = request.get_ref();
            if !r.path.starts_with('/') || r.path.contains(char::is_whitespace) {
                return self.refuse(
                    Some(request.span()),
                    format!("warmup path \"{}\" must start with '/' and have no spaces", r.path),
                );
            }
            if r.method.is_empty() || !r.method.chars().all(|c| c.is_ascii_uppercase()) {
                return self.refuse(
                    Some(request.span()),
                    format!("warmup method \"{}\" is not an HTTP method: use GET, POST, …", r.method),
                );
            }
            for (name, value) in &r.headers {
                let is_header = HeaderName::from_bytes(name.as_bytes()).is_ok() && HeaderValue::from_str(value).is_ok();
                let lower = name.to_ascii_lowercase();
                if !is_header || lower.starts_with("x-fn-") || OWN_HEADERS.contains(&lower.as_str()) {
                    let message = format!(
                        "warmup header {name:?} cannot be sent: a name has letters, digits and dashes, does not begin \
                         with x-fn-, and its value is one line; {} are the platform's",
                        OWN_HEADERS.join(", ")
                    );
                    return self.refuse(Some(request.span()), message);
                }
            }
        }
        Ok(requests.into_iter().map(Spanned::into_inner).collect())
    }

    fn hooks(
        &self,
        runtime: Runtime,
        interface: Interface,
        hooks: Option<Spanned<Hooks>>,
    ) -> Result<Hooks, ManifestError> {
        let Some(hooks) = hooks else {
            return Ok(Hooks::default());
        };
        if interface == Interface::Lambda {
            let message = "hooks is not for interface = \"lambda\", whose runtimes have hooks of their own";
            return self.refuse(Some(hooks.span()), message);
        }
        if runtime != Runtime::Http {
            return self.refuse(
                Some(hooks.span()),
                "hooks is for runtime = \"http\" only: python and node register functions, see \
                 docs/reference/runtime-contract.md",
            );
        }
        let h = hooks.get_ref();
        for path in [&h.before_snapshot, &h.after_restore].into_iter().flatten() {
            if !path.starts_with('/') || path.contains(char::is_whitespace) {
                return self.refuse(
                    Some(hooks.span()),
                    format!("hook path \"{path}\" must start with '/' and have no spaces"),
                );
            }
        }
        Ok(hooks.into_inner())
    }
}

//! `fn.toml`: a developer's description of a function. Parsing checks everything that can be checked without running
//! the function. An error names the line and the fix.

mod base;
mod control;
mod units;

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use toml::Spanned;
use utoipa::ToSchema;

use crate::ids::FunctionName;
pub use base::{Base, Interpreter, advice};
pub use units::{ByteSize, ParseUnitError, parse_duration};

/// The file's name in a function's folder.
pub const FILE_NAME: &str = "fn.toml";

const MEMORY: Range<u64> = 16 << 20..(64 << 30) + 1;
const TMP: Range<u64> = 1 << 20..(16 << 30) + 1;
const TIMEOUT_S: Range<u64> = 1..901;
const IDLE_S: Range<u64> = 1..86_401;
const CONCURRENCY: Range<u64> = 1..1_001;
const INSTANCES: Range<u64> = 1..10_001;
const KEPT: Range<u64> = 0..1_001;
const PARK_S: Range<u64> = 0..604_801;
const WARMUP_MAX: usize = 20;
const ATTEMPTS: Range<u64> = 1..101;
const AGE_S: Range<u64> = 1..604_801;

/// A complete and valid manifest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Manifest {
    /// The function's name.
    pub name: FunctionName,
    /// The runtime that starts it.
    pub runtime: Runtime,
    /// `python` and `node`: the handler, as `file.function`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<String>,
    /// `http`: the command that serves HTTP on `$PORT`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// The root filesystem.
    pub base: Base,
    /// Memory limit of an instance in bytes.
    pub memory: ByteSize,
    /// CPU share of an instance, in cores.
    pub cpu: f64,
    /// Time limit of an invocation in milliseconds.
    pub timeout_ms: u64,
    /// Time limit of a boot, until the function accepts connections, in milliseconds.
    #[serde(default = "boot_timeout_ms", skip_serializing_if = "is_usual_boot_timeout")]
    pub boot_timeout_ms: u64,
    /// Maximum number of concurrent invocations per instance.
    pub concurrency: u32,
    /// Maximum number of instances of the function.
    pub max_instances: u32,
    /// How long an unused instance is kept, in milliseconds.
    pub idle_ms: u64,
    /// How long an instance is kept parked after it was unused for that long, in milliseconds.
    #[serde(default)]
    pub park_ms: u64,
    /// Whether both were left to the platform, which then decides how long unused instances are kept, and in which
    /// state.
    #[serde(default)]
    pub adaptive: bool,
    /// Minimum number of instances kept ready, started ahead of any request.
    #[serde(default)]
    pub min_warm: u32,
    /// Minimum number of instances kept parked, restored ahead of any request.
    #[serde(default)]
    pub min_parked: u32,
    /// Size limit of `/tmp` in bytes.
    pub tmp: ByteSize,
    /// Whether to take a snapshot after warm-up.
    pub snapshot: bool,
    /// Whether to reject a version whose copies would share random numbers.
    #[serde(default)]
    pub unique: bool,
    /// Whether a deploy restores the snapshot once and sends the warm-up requests to the copy before the version goes
    /// live.
    #[serde(default = "yes")]
    pub rehearse: bool,
    /// Whether an invocation may safely run twice. If its worker is lost, it is then sent again.
    #[serde(default)]
    pub idempotent: bool,
    /// Its access to the network.
    #[serde(default)]
    pub network: Network,
    /// Settings of its asynchronous invocations.
    #[serde(default, rename = "async")]
    pub asynchronous: Asynchronous,
    /// Environment variables.
    pub env: BTreeMap<String, String>,
    /// Requests sent before the snapshot is taken.
    pub warmup: Vec<WarmupRequest>,
    /// Paths of an `http` function that are called around a snapshot.
    pub hooks: Hooks,
    /// Command that `fn deploy` runs in the folder before packing it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_command: Option<String>,
}

impl Manifest {
    /// Time limit of an invocation.
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }

    /// Time limit of a boot, until the function accepts connections.
    pub fn boot_timeout(&self) -> Duration {
        Duration::from_millis(self.boot_timeout_ms)
    }

    /// Whether its boot timeout exceeds the default.
    pub fn boots_slowly(&self) -> bool {
        self.boot_timeout_ms > boot_timeout_ms()
    }

    /// How long an unused instance is kept.
    pub fn idle(&self) -> Duration {
        Duration::from_millis(self.idle_ms)
    }

    /// How long an unused instance is kept parked after that.
    pub fn park(&self) -> Duration {
        Duration::from_millis(self.park_ms)
    }

    /// Requests that a copy of its snapshot must answer before the version goes live: the warm-up requests, or `GET /`.
    pub fn rehearsed(&self) -> Vec<WarmupRequest> {
        match self.warmup.as_slice() {
            [] => vec![WarmupRequest {
                method: get(),
                path: root(),
                body: String::new(),
            }],
            requests => requests.to_vec(),
        }
    }
}

/// Default boot timeout in seconds.
const BOOT_TIMEOUT_S: u64 = 30;

pub(crate) fn boot_timeout_ms() -> u64 {
    BOOT_TIMEOUT_S * 1000
}

fn is_usual_boot_timeout(value: &u64) -> bool {
    *value == boot_timeout_ms()
}

/// The contract of the function's process, see docs/reference/runtime-contract.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Runtime {
    /// CPython with a `handler(event, context)`.
    Python,
    /// Node.js with a `handler(event, context)`.
    Node,
    /// Any command that serves HTTP on `$PORT`.
    Http,
}

impl Runtime {
    /// Its name in `fn.toml`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Node => "node",
            Self::Http => "http",
        }
    }
}

/// A function's access to the network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// Public addresses, but neither the host nor private addresses.
    #[default]
    Egress,
    /// Only its own loopback interface.
    None,
}

impl Network {
    /// Its name in `fn.toml`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Egress => "egress",
            Self::None => "none",
        }
    }
}

/// Settings of a function's asynchronous invocations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Asynchronous {
    /// Maximum number of attempts that reach the function.
    pub max_attempts: u32,
    /// Maximum age before one is given up, in milliseconds.
    pub max_age_ms: u64,
    /// URL to which results are posted, unless the request states one itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<String>,
}

impl Default for Asynchronous {
    fn default() -> Self {
        Self {
            max_attempts: 3,
            max_age_ms: 6 * 3_600_000,
            callback: None,
        }
    }
}

/// Checks that a text is a valid callback URL: an absolute `http` or `https` URL without user and password.
///
/// # Errors
/// If the text is not valid. The message says why.
pub fn check_callback(text: &str) -> Result<(), String> {
    let wrong = |why: &str| Err(format!("\"{text}\" is no address for a callback: {why}"));
    if text.len() > crate::asynchronous::CALLBACK_MAX {
        return Err(format!(
            "a callback's address has at most {} bytes",
            crate::asynchronous::CALLBACK_MAX
        ));
    }
    let Ok(uri) = text.parse::<http::Uri>() else {
        return wrong("write http://HOST/PATH or https://HOST/PATH");
    };
    match (uri.scheme_str(), uri.authority()) {
        (Some("http" | "https"), Some(authority)) if authority.as_str().contains('@') => {
            wrong("leave out the user and the password")
        }
        (Some("http" | "https"), Some(authority)) if !authority.host().is_empty() => Ok(()),
        _ => wrong("write http://HOST/PATH or https://HOST/PATH"),
    }
}

/// A warm-up request of the function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WarmupRequest {
    /// HTTP method.
    #[serde(default = "get")]
    pub method: String,
    /// Path with query.
    #[serde(default = "root")]
    pub path: String,
    /// Body.
    #[serde(default)]
    pub body: String,
}

fn yes() -> bool {
    true
}

fn get() -> String {
    "GET".to_owned()
}

fn root() -> String {
    "/".to_owned()
}

/// Paths of an `http` function that are called around a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Hooks {
    /// Called before the checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before_snapshot: Option<String>,
    /// Called in every restored instance, before its first request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_restore: Option<String>,
}

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
    runtime: Spanned<String>,
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
    idempotent: Option<bool>,
    network: Option<Spanned<String>>,
    #[serde(rename = "async")]
    asynchronous: Option<RawAsync>,
    #[serde(default)]
    env: BTreeMap<String, Spanned<String>>,
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

const EXAMPLES: &[&str] = &[
    r#"name = "hello""#,
    r#"runtime = "python""#,
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
    "idempotent = true",
    r#"network = "egress""#,
    "max_attempts = 3",
    r#"max_age = "1h""#,
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
        let (runtime, base) = self.runtime(&raw.runtime, raw.base)?;
        let (entry, command) = self.start(runtime, raw.entry, raw.command)?;
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
        let max_instances = self.count("max_instances", raw.max_instances, 10, &INSTANCES)?;
        let adaptive = raw.idle.is_none() && raw.park.is_none();
        let warm_at = raw.min_warm.as_ref().map(Spanned::span);
        let min_warm = self.count("min_warm", raw.min_warm, 0, &KEPT)?;
        let parked_at = raw.min_parked.as_ref().map(Spanned::span);
        let min_parked = self.count("min_parked", raw.min_parked, 0, &KEPT)?;
        if min_parked > max_instances {
            return self.refuse(
                parked_at,
                format!("min_parked = {min_parked} is more than max_instances = {max_instances}: lower it, or raise max_instances"),
            );
        }
        if min_warm.saturating_add(min_parked) > max_instances {
            return self.refuse(
                warm_at,
                format!("min_warm = {min_warm} and min_parked = {min_parked} are more than max_instances = {max_instances}: lower one, or raise max_instances"),
            );
        }
        if min_parked > 0 && raw.snapshot == Some(RawSnapshot::Taken(false)) {
            return self.refuse(
                parked_at,
                "min_parked needs snapshots, as parked instances are restored ahead: remove snapshot = false, or this line",
            );
        }
        Ok(Manifest {
            name,
            runtime,
            entry,
            command,
            base,
            memory,
            cpu,
            timeout_ms: self.seconds("timeout", raw.timeout, 30, &TIMEOUT_S)?,
            boot_timeout_ms: self.seconds("boot_timeout", raw.boot_timeout, BOOT_TIMEOUT_S, &TIMEOUT_S)?,
            concurrency: self.count("concurrency", raw.concurrency, 1, &CONCURRENCY)?,
            max_instances,
            idle_ms: self.seconds("idle", raw.idle, 300, &IDLE_S)?,
            park_ms: self.seconds("park", raw.park, 0, &PARK_S)?,
            adaptive,
            min_warm,
            min_parked,
            tmp,
            snapshot: raw.snapshot != Some(RawSnapshot::Taken(false)),
            unique: raw.snapshot == Some(RawSnapshot::Named(SnapshotName::Unique)),
            rehearse: raw.rehearse.unwrap_or_else(yes),
            idempotent: raw.idempotent.unwrap_or_default(),
            network: self.network(raw.network)?,
            asynchronous: self.asynchronous(raw.asynchronous.unwrap_or_default())?,
            env: self.env(raw.env)?,
            warmup: self.warmup(raw.warmup)?,
            hooks: self.hooks(runtime, raw.hooks)?,
            build_command: raw.build.map(|b| b.command),
        })
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

    fn network(&self, value: Option<Spanned<String>>) -> Result<Network, ManifestError> {
        match value.as_ref().map(|v| (v.get_ref().as_str(), v.span())) {
            None | Some(("egress", _)) => Ok(Network::Egress),
            Some(("none", _)) => Ok(Network::None),
            Some((other, span)) => self.refuse(
                Some(span),
                format!(
                    "network = \"{other}\" is not known: use \"egress\" (the world, but nothing private) or \"none\" (its own loopback)"
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
            out.insert(key, value.into_inner());
        }
        Ok(out)
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
        }
        Ok(requests.into_iter().map(Spanned::into_inner).collect())
    }

    fn hooks(&self, runtime: Runtime, hooks: Option<Spanned<Hooks>>) -> Result<Hooks, ManifestError> {
        let Some(hooks) = hooks else {
            return Ok(Hooks::default());
        };
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

#[cfg(test)]
mod tests;

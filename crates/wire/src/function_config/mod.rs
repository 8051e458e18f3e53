//! `fn.toml`: a developer's description of a function.

mod auth;
mod base;
mod changes;
mod control;
mod cors;
mod interface;
mod parse;
mod protocol;
mod schedules;
mod sources;
mod units;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::destination::Destination;
pub use crate::destination::check_callback;
use crate::event_source::EventSource;
use crate::ids::FunctionName;
use crate::schedule::Schedule;
use crate::secret::SecretName;
pub use auth::{Allowed, Auth, TokenRule};
pub use base::{Base, Interpreter, advice};
pub use changes::{SettingChange, Work};
pub use cors::Cors;
pub use interface::Interface;
pub use parse::{FunctionConfigError, parse, warnings};
pub use protocol::Protocol;
pub use units::{ByteSize, ParseUnitError, parse_duration};

/// The file's name in a function's folder.
pub const FILE_NAME: &str = "fn.toml";

/// A complete and valid function config.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FunctionConfig {
    /// The function's name.
    pub name: FunctionName,
    /// The runtime that starts it.
    pub runtime: Runtime,
    /// How an `http` function takes invocations.
    #[serde(default, skip_serializing_if = "Interface::is_http")]
    pub interface: Interface,
    /// `python` and `node`: the handler, as `file.function`. With the Lambda interface: `_HANDLER`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<String>,
    /// `http`: the command that serves HTTP on `$PORT`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// The container image that is its root filesystem, as `fn.toml` names it. `base` has no meaning then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The port on which it serves HTTP, inside its sandbox.
    #[serde(default = "port", skip_serializing_if = "is_usual_port")]
    pub port: u16,
    /// The version of HTTP that it speaks there.
    #[serde(default, skip_serializing_if = "Protocol::is_http1")]
    pub protocol: Protocol,
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
    /// Whether each invocation gets a copy of the snapshot that has served none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fresh: bool,
    /// Whether an invocation may safely run twice. If its worker is lost, it is then sent again.
    #[serde(default)]
    pub idempotent: bool,
    /// What its callers must show.
    #[serde(default, skip_serializing_if = "Auth::is_none")]
    pub auth: Auth,
    /// The tokens among it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwt: Option<TokenRule>,
    /// Who needs none of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<Allowed>,
    /// Which pages of other origins may call it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cors: Option<Cors>,
    /// Its access to the network.
    #[serde(default)]
    pub network: Network,
    /// Settings of its asynchronous invocations.
    #[serde(default, rename = "async")]
    pub asynchronous: Asynchronous,
    /// When the platform runs it by itself.
    #[serde(default, rename = "schedule", skip_serializing_if = "Vec::is_empty")]
    pub schedules: Vec<Schedule>,
    /// Queues whose messages it is invoked with.
    #[serde(default, rename = "source", skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<EventSource>,
    /// Environment variables.
    pub env: BTreeMap<String, String>,
    /// Secrets that its instances get: after a restore, or before a boot if it has no snapshot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretName>,
    /// Requests sent before the snapshot is taken.
    pub warmup: Vec<WarmupRequest>,
    /// Paths of an `http` function that are called around a snapshot.
    pub hooks: Hooks,
    /// Command that `fn deploy` runs in the folder before packing it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_command: Option<String>,
}

impl FunctionConfig {
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

    /// Whether it reads a request's body while it comes. Handlers, and those of Lambda's interface, get events, which
    /// are complete in memory.
    pub fn streams(&self) -> bool {
        self.runtime == Runtime::Http && self.interface == Interface::Http
    }

    /// Whether the instance of a deploy is no copy of what serves later: it has none of the function's secrets.
    pub fn deploys_without_secrets(&self) -> bool {
        self.snapshot && !self.secrets.is_empty()
    }

    /// Requests that a copy of its snapshot must answer before the version goes live: the warm-up requests, or `GET /`.
    /// Servers of gRPC refuse that one. They are asked for their health, and answer even if they do not know it.
    pub fn rehearsed(&self) -> Vec<WarmupRequest> {
        match self.warmup.as_slice() {
            [] if self.protocol == Protocol::H2c => vec![WarmupRequest {
                method: "POST".to_owned(),
                path: "/grpc.health.v1.Health/Check".to_owned(),
                headers: [("content-type", "application/grpc"), ("te", "trailers")]
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
                    .into(),
                // A message of no bytes: not compressed, and its length.
                body: "\0".repeat(5),
            }],
            [] => vec![WarmupRequest {
                method: get(),
                path: root(),
                headers: BTreeMap::new(),
                body: String::new(),
            }],
            requests => requests.to_vec(),
        }
    }
}

/// Default port.
const PORT: u16 = 8080;

fn port() -> u16 {
    PORT
}

fn is_usual_port(value: &u16) -> bool {
    *value == PORT
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
    /// Who is told of those that succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub on_success: Option<Destination>,
    /// Who is told of those that were given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub on_failure: Option<Destination>,
}

impl Default for Asynchronous {
    fn default() -> Self {
        Self {
            max_attempts: 3,
            max_age_ms: 6 * 3_600_000,
            callback: None,
            on_success: None,
            on_failure: None,
        }
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
    /// Headers, by name. A body without a `content-type` is `application/json`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
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

#[cfg(test)]
mod tests;

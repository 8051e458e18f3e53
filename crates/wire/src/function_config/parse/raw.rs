//! The keys of `fn.toml`, as they are written.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

use super::super::schedules::RawSchedule;
use super::super::sources::RawSource;
use super::super::{Base, Hooks, WarmupRequest};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Raw {
    pub(super) name: Spanned<String>,
    pub(super) runtime: Option<Spanned<String>>,
    pub(super) image: Option<Spanned<String>>,
    pub(super) interface: Option<Spanned<String>>,
    pub(super) port: Option<Spanned<u64>>,
    pub(super) protocol: Option<Spanned<String>>,
    pub(super) entry: Option<Spanned<String>>,
    pub(super) command: Option<Spanned<Vec<String>>>,
    pub(super) base: Option<Spanned<Base>>,
    pub(super) memory: Option<Spanned<String>>,
    pub(super) cpu: Option<Spanned<f64>>,
    pub(super) timeout: Option<Spanned<String>>,
    pub(super) boot_timeout: Option<Spanned<String>>,
    pub(super) concurrency: Option<Spanned<u64>>,
    pub(super) max_instances: Option<Spanned<u64>>,
    pub(super) idle: Option<Spanned<String>>,
    pub(super) park: Option<Spanned<String>>,
    pub(super) min_warm: Option<Spanned<u64>>,
    pub(super) min_parked: Option<Spanned<u64>>,
    pub(super) tmp: Option<Spanned<String>>,
    pub(super) snapshot: Option<RawSnapshot>,
    pub(super) rehearse: Option<bool>,
    pub(super) fresh: Option<Spanned<bool>>,
    pub(super) idempotent: Option<bool>,
    pub(super) auth: Option<Spanned<String>>,
    pub(super) allow: Option<Spanned<Vec<String>>>,
    pub(super) jwt: Option<Spanned<RawJwt>>,
    pub(super) cors: Option<Spanned<RawCors>>,
    pub(super) network: Option<Spanned<String>>,
    #[serde(rename = "async")]
    pub(super) asynchronous: Option<RawAsync>,
    #[serde(default)]
    pub(super) schedule: Vec<RawSchedule>,
    #[serde(default)]
    pub(super) source: Vec<RawSource>,
    #[serde(default)]
    pub(super) env: BTreeMap<String, Spanned<String>>,
    #[serde(default)]
    pub(super) secrets: Vec<Spanned<RawSecret>>,
    #[serde(default)]
    pub(super) warmup: Vec<Spanned<WarmupRequest>>,
    pub(super) hooks: Option<Spanned<Hooks>>,
    pub(super) build: Option<RawBuild>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawJwt {
    pub(super) issuer: Spanned<String>,
    pub(super) audience: Spanned<OneOrMore>,
    pub(super) claims: Option<Spanned<BTreeMap<String, String>>>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "invalid type: it is a text, or a list of texts")]
pub(super) enum OneOrMore {
    One(String),
    More(Vec<String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawCors {
    pub(super) origins: Vec<String>,
    pub(super) methods: Option<Vec<String>>,
    pub(super) headers: Option<Vec<String>>,
    pub(super) expose: Option<Vec<String>>,
    pub(super) credentials: Option<bool>,
    pub(super) max_age: Option<Spanned<String>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawAsync {
    pub(super) max_attempts: Option<Spanned<u64>>,
    pub(super) max_age: Option<Spanned<String>>,
    pub(super) callback: Option<Spanned<String>>,
    pub(super) on_success: Option<Spanned<String>>,
    pub(super) on_failure: Option<Spanned<String>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "invalid type: it is true, false or \"unique\"")]
pub(super) enum RawSnapshot {
    Taken(bool),
    Named(SnapshotName),
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SnapshotName {
    Unique,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "invalid type: a secret is its name, or { name = \"NAME\", at = \"boot\" }"
)]
pub(super) enum RawSecret {
    Name(String),
    At { name: String, at: SecretTime },
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SecretTime {
    Boot,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawBuild {
    pub(super) command: String,
}

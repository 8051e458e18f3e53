//! The program's configuration file: the gateway and its key, whose sources are read, and which servers they may name.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rekindle_wire::Namespace;
use rekindle_wire::event_source::{EventSource, QueueKind};
use serde::Deserialize;

/// Batches in flight at once, of all sources together.
const BATCHES: usize = 64;
const BATCHES_MAX: usize = 4_096;

/// The file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    /// Address of the gateway.
    pub(crate) gateway: String,
    /// A file with the authority of an https gateway's certificate, instead of those that this machine trusts.
    pub(crate) ca: Option<PathBuf>,
    /// A file with a key that has the role invoker in every namespace that is read.
    pub(crate) key_file: PathBuf,
    /// The namespaces whose sources are read.
    #[serde(default = "default_namespaces")]
    pub(crate) namespaces: Vec<Namespace>,
    /// Where health and metrics are served.
    #[serde(default = "listen")]
    pub(crate) listen: SocketAddr,
    /// Maximum number of batches in flight, of all sources together.
    #[serde(default = "batches")]
    pub(crate) batches: usize,
    /// Seconds between two looks at which sources there are.
    #[serde(default = "poll_seconds")]
    pub(crate) poll_seconds: u64,
    /// Seconds that batches in flight get when the program is stopped.
    #[serde(default = "stop_seconds")]
    pub(crate) stop_seconds: u64,
    /// The servers that sources may name.
    #[serde(default, rename = "server")]
    pub(crate) servers: Vec<Server>,
}

/// A server that sources may name.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Server {
    /// What serves it.
    #[serde(rename = "type")]
    pub(crate) kind: QueueKind,
    /// Its address, as sources name it.
    pub(crate) url: String,
    /// Name by which sources ask for these credentials. Without one: for sources that name none.
    pub(crate) credentials: Option<String>,
    /// The namespaces whose sources may use it. All by default.
    pub(crate) namespaces: Option<Vec<Namespace>>,
    /// NATS: a credentials file (`.creds`). SQS: a file in the form of `~/.aws/credentials`.
    pub(crate) credentials_file: Option<PathBuf>,
    /// NATS: a user.
    pub(crate) user: Option<String>,
    /// NATS: a file with the user's password.
    pub(crate) password_file: Option<PathBuf>,
    /// NATS: a file with a token.
    pub(crate) token_file: Option<PathBuf>,
    /// NATS: a file with the authority of the server's certificate.
    pub(crate) ca: Option<PathBuf>,
    /// SQS: the region; by default as the address says.
    pub(crate) region: Option<String>,
    /// SQS: the profile in the file.
    pub(crate) profile: Option<String>,
}

fn default_namespaces() -> Vec<Namespace> {
    vec![Namespace::default()]
}

fn listen() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 8084).into()
}

fn batches() -> usize {
    BATCHES
}

fn poll_seconds() -> u64 {
    3
}

fn stop_seconds() -> u64 {
    25
}

impl Config {
    /// Reads and checks a file.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| {
            format!(
                "{} cannot be read: docs/how-to/read-from-queues.md says what it has",
                path.display()
            )
        })?;
        Self::parse(&text).with_context(|| format!("{}", path.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let mut config: Self = toml::from_str(text).context("it is not understood")?;
        config.gateway = config.gateway.trim_end_matches('/').to_owned();
        ensure!(
            config.gateway.starts_with("http://") || config.gateway.starts_with("https://"),
            "gateway = \"{}\" is no address: write http://HOST:PORT or https://HOST",
            config.gateway
        );
        ensure!(
            !config.namespaces.is_empty(),
            "namespaces is empty: name those whose sources are read"
        );
        ensure!(
            (1..=BATCHES_MAX).contains(&config.batches),
            "batches = {} is impossible: use 1 to {BATCHES_MAX}",
            config.batches
        );
        ensure!(
            (1..=60).contains(&config.poll_seconds),
            "poll_seconds = {} is impossible: use 1 to 60",
            config.poll_seconds
        );
        ensure!(config.stop_seconds <= 900, "stop_seconds is at most 900");
        for server in &mut config.servers {
            server.url = server.url.trim_end_matches('/').to_owned();
            server.check().with_context(|| format!("[[server]] {}", server.url))?;
        }
        Ok(config)
    }

    /// How long batches in flight get when the program is stopped.
    pub(crate) fn stop_limit(&self) -> Duration {
        Duration::from_secs(self.stop_seconds)
    }

    /// The server of a source.
    ///
    /// # Errors
    /// What the operator has to write for it.
    pub(crate) fn server(&self, namespace: &str, source: &EventSource) -> Result<&Server, String> {
        let is_same = |server: &&Server| {
            (server.kind, &server.url, &server.credentials) == (source.kind, &source.url, &source.credentials)
        };
        let open = |server: &&Server| {
            let named = server.namespaces.as_ref();
            named.is_none_or(|all| all.iter().any(|one| one.as_str() == namespace))
        };
        self.servers.iter().filter(is_same).find(open).ok_or_else(|| {
            let credentials = match &source.credentials {
                Some(name) => format!(" with credentials = \"{name}\""),
                None => String::new(),
            };
            format!(
                "{}{credentials} is not open to the namespace {namespace}: the operator adds a [[server]] with this \
                 url to the configuration of rekindle-events",
                source.url
            )
        })
    }
}

impl Server {
    fn check(&self) -> Result<()> {
        let own = match self.kind {
            QueueKind::Nats => self.region.is_none() && self.profile.is_none(),
            QueueKind::Sqs => {
                self.user.is_none() && self.password_file.is_none() && self.token_file.is_none() && self.ca.is_none()
            }
        };
        ensure!(
            own,
            "it has settings of another type: NATS has credentials_file, user, password_file, token_file and ca, \
             SQS has credentials_file, region and profile"
        );
        ensure!(
            self.user.is_some() == self.password_file.is_some(),
            "user and password_file belong together: write both"
        );
        let ways = [
            self.credentials_file.is_some(),
            self.user.is_some(),
            self.token_file.is_some(),
        ];
        ensure!(
            ways.iter().filter(|way| **way).count() <= 1,
            "it has several ways to authenticate: leave one"
        );
        Ok(())
    }
}

/// The content of a file that has one secret.
pub(crate) fn secret(path: &Path) -> Result<String> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let text = text.trim().to_owned();
    ensure!(!text.is_empty(), "{} is empty", path.display());
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::source;

    const START: &str = "gateway = \"http://127.0.0.1:8080/\"\nkey_file = \"/k\"\n";

    #[test]
    fn a_source_gets_a_server_that_the_operator_has_opened_to_it() {
        let config = Config::parse(&format!(
            "{START}[[server]]\ntype = \"nats\"\nurl = \"nats://q:4222/\"\nnamespaces = [\"team\"]\n\
             [[server]]\ntype = \"nats\"\nurl = \"nats://q:4222\"\ncredentials = \"own\"\ntoken_file = \"/t\"\n"
        ))
        .unwrap();
        assert_eq!((config.gateway.as_str(), config.batches), ("http://127.0.0.1:8080", 64));
        let mut source = source(1);
        assert!(config.server("team", &source).unwrap().token_file.is_none());
        let refused = config.server("default", &source).unwrap_err();
        assert!(refused.contains("not open to the namespace default"), "{refused}");
        source.credentials = Some("own".to_owned());
        assert!(config.server("default", &source).unwrap().token_file.is_some());
        // No server is part of another, and no credentials go to one that the operator has not named.
        for url in ["nats://q:42222", "nats://evil:4222", "tls://q:4222"] {
            source.url = url.to_owned();
            config.server("team", &source).unwrap_err();
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for (more, why) in [
            ("namespaces = []\n", "namespaces is empty"),
            ("batches = 0\n", "1 to 4096"),
            ("poll_seconds = 0\n", "1 to 60"),
            ("colour = 1\n", "colour"),
            (
                "[[server]]\ntype = \"nats\"\nurl = \"nats://q\"\nregion = \"x\"\n",
                "another type",
            ),
            (
                "[[server]]\ntype = \"sqs\"\nurl = \"http://q\"\nuser = \"x\"\n",
                "another type",
            ),
            (
                "[[server]]\ntype = \"nats\"\nurl = \"nats://q\"\nuser = \"x\"\n",
                "belong together",
            ),
            (
                "[[server]]\ntype = \"nats\"\nurl = \"nats://q\"\ntoken_file = \"x\"\ncredentials_file = \"y\"\n",
                "several ways",
            ),
        ] {
            let error = format!("{:#}", Config::parse(&format!("{START}{more}")).unwrap_err());
            assert!(error.contains(why), "{more}: {error}");
        }
        let error = Config::parse("gateway = \"x\"\nkey_file = \"/k\"\n").unwrap_err();
        assert!(error.to_string().contains("no address"), "{error}");
    }
}

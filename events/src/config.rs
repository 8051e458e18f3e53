//! What the program is told: the gateway and its key, whose sources are read, and which servers they may name.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rekindle_wire::Namespace;
use rekindle_wire::event_source::{EventSource, QueueKind};
use serde::{Deserialize, Serialize};
use toml::Table;

/// Batches in flight at once, of all sources together.
const BATCHES: usize = 64;
const BATCHES_MAX: usize = 4_096;

/// The table `[events]` of the settings file, with what the command line and variables say over it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Config {
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
    #[serde(default, rename = "server", skip_serializing)]
    pub(crate) servers: Vec<Server>,
}

/// A server that sources may name.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Server {
    #[serde(rename = "type")]
    pub(crate) kind: QueueKind,
    /// Its address, as sources name it.
    pub(crate) url: String,
    /// Name by which sources ask for these credentials. Without one: for sources that name none.
    pub(crate) credentials: Option<String>,
    /// The namespaces whose sources may use it. All by default.
    pub(crate) namespaces: Option<Vec<Namespace>>,
    /// The queues or streams that those may read, by name, or by how names begin (`orders-*`). All by default, if one
    /// namespace alone may use the server.
    pub(crate) queues: Option<Vec<String>>,
    /// Where their dead letters may go, likewise.
    pub(crate) dead_letters: Option<Vec<String>>,
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
    /// Checks what was read.
    pub(crate) fn parse(table: Table) -> Result<Self> {
        let mut config: Self = table.try_into().context("it is not understood")?;
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
            "poll-seconds = {} is impossible: use 1 to 60",
            config.poll_seconds
        );
        ensure!(config.stop_seconds <= 900, "stop-seconds is at most 900");
        for server in &mut config.servers {
            server.url = server.url.trim_end_matches('/').to_owned();
            let wrong = || format!("[[events.server]] {}", server.url);
            server.check().with_context(wrong)?;
            let is_open = |namespace: &&Namespace| server.namespaces.as_ref().is_none_or(|all| all.contains(namespace));
            let is_shared = config.namespaces.iter().filter(is_open).count() > 1;
            ensure!(
                !is_shared || (server.queues.is_some() && server.dead_letters.is_some()),
                "[[events.server]] {}: several namespaces may use it, and would read each other's queues: write one \
                 for each, or what all may use (queues = [\"orders-*\"], dead-letters = [\"dead-*\"])",
                server.url
            );
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
        let server = self.servers.iter().filter(is_same).find(open).ok_or_else(|| {
            let credentials = match &source.credentials {
                Some(name) => format!(" with credentials = \"{name}\""),
                None => String::new(),
            };
            format!(
                "{}{credentials} is not open to the namespace {namespace}: the operator adds an [[events.server]] with \
                 this url to the settings file",
                source.url
            )
        })?;
        server.may_use(source)?;
        Ok(server)
    }
}

impl Server {
    /// Whether what a source names there is the operator's to give. Its credentials could do more.
    fn may_use(&self, source: &EventSource) -> Result<(), String> {
        let is_listed =
            |list: &Option<Vec<String>>, name: &str| list.as_ref().map(|all| all.iter().any(|p| fits(p, name)));
        let refused = |what: &str, name: &str, setting: &str| {
            Err(format!(
                "{what} \"{name}\" is not open to this namespace: the operator lists it in {setting} of its \
                 [[events.server]]"
            ))
        };
        let (queue, letters) = (source.queue.as_str(), source.dead_letter.as_deref());
        let is_bucket = self.kind == QueueKind::Nats && (queue.starts_with("KV_") || queue.starts_with("OBJ_"));
        if !is_listed(&self.queues, queue).unwrap_or(!is_bucket) {
            return refused("the queue", queue, "queues");
        }
        if let Some(name) = source
            .consumer
            .as_deref()
            .filter(|name| name.starts_with(OWN_CONSUMERS))
        {
            return Err(format!(
                "the consumer \"{name}\" is another source's: names that begin with {OWN_CONSUMERS} are this program's"
            ));
        }
        let Some(letters) = letters else {
            return Ok(());
        };
        let is_command = letters.starts_with(['$', '_']) || letters.contains(['*', '>']);
        if self.kind == QueueKind::Nats && is_command {
            return Err(format!(
                "dead letters cannot go to \"{letters}\": write a subject without wildcards that begins with neither $ \
                 nor _"
            ));
        }
        match is_listed(&self.dead_letters, letters).unwrap_or(true) {
            true => Ok(()),
            false => refused("the queue of dead letters", letters, "dead-letters"),
        }
    }

    fn check(&self) -> Result<()> {
        let own = match self.kind {
            QueueKind::Nats => self.region.is_none() && self.profile.is_none(),
            QueueKind::Sqs => {
                self.user.is_none() && self.password_file.is_none() && self.token_file.is_none() && self.ca.is_none()
            }
        };
        ensure!(
            own,
            "it has settings of another type: NATS has credentials-file, user, password-file, token-file and ca, \
             SQS has credentials-file, region and profile"
        );
        ensure!(
            self.user.is_some() == self.password_file.is_some(),
            "user and password-file belong together: write both"
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

/// How names of the consumers begin that this program makes.
pub(crate) const OWN_CONSUMERS: &str = "rekindle_";

/// Whether a name is this one, or begins as a pattern with `*` at its end says.
fn fits(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == pattern,
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

    fn parse(text: &str) -> Result<Config> {
        Config::parse(text.parse()?)
    }

    const START: &str = "gateway = \"http://127.0.0.1:8080/\"\nkey-file = \"/k\"\n";

    #[test]
    fn a_source_gets_a_server_that_the_operator_has_opened_to_it() {
        let config = parse(&format!(
            "{START}[[server]]\ntype = \"nats\"\nurl = \"nats://q:4222/\"\nnamespaces = [\"team\"]\n\
             [[server]]\ntype = \"nats\"\nurl = \"nats://q:4222\"\ncredentials = \"own\"\ntoken-file = \"/t\"\n"
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
    fn a_source_uses_nothing_behind_its_server_that_is_not_its_namespaces() {
        let server = "[[server]]\ntype = \"nats\"\nurl = \"nats://q:4222\"\n";
        let lists = "queues = [\"ORDERS\", \"team-*\"]\ndead-letters = [\"dead*\"]\n";
        let two = "namespaces = [\"default\", \"team\"]\n";
        parse(&format!("{START}{two}{server}")).unwrap_err();
        let config = parse(&format!("{START}{two}{server}{lists}")).unwrap();
        let alone = parse(&format!("{START}{server}")).unwrap();
        let with = |change: &dyn Fn(&mut EventSource)| {
            let mut changed = source(1);
            change(&mut changed);
            [&config, &alone].map(|config| config.server("default", &changed).is_ok())
        };
        assert_eq!(with(&|_| ()), [true, true]);
        assert_eq!(with(&|s| s.queue = "team-a".to_owned()), [true, true]);
        assert_eq!(with(&|s| s.queue = "ORDERS2".to_owned()), [false, true]);
        assert_eq!(with(&|s| s.queue = "KV_settings".to_owned()), [false, false]);
        assert_eq!(with(&|s| s.dead_letter = Some("orders.new".to_owned())), [false, true]);
        for command in ["$JS.API.STREAM.PURGE.ORDERS", "_INBOX.x", "dead.*", "dead.>"] {
            assert_eq!(
                with(&|s| s.dead_letter = Some(command.to_owned())),
                [false, false],
                "{command}"
            );
        }
        assert_eq!(
            with(&|s| s.consumer = Some("rekindle_team_a_b".to_owned())),
            [false, false]
        );
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for (more, why) in [
            ("namespaces = []\n", "namespaces is empty"),
            ("batches = 0\n", "1 to 4096"),
            ("poll-seconds = 0\n", "1 to 60"),
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
                "[[server]]\ntype = \"nats\"\nurl = \"nats://q\"\ntoken-file = \"x\"\ncredentials-file = \"y\"\n",
                "several ways",
            ),
        ] {
            let error = format!("{:#}", parse(&format!("{START}{more}")).unwrap_err());
            assert!(error.contains(why), "{more}: {error}");
        }
        let error = parse("gateway = \"x\"\nkey-file = \"/k\"\n").unwrap_err();
        assert!(error.to_string().contains("no address"), "{error}");
    }
}

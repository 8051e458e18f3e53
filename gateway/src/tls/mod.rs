//! TLS with clients: which certificate is shown for which host, and how a new one is loaded while connections continue.
//!
//! ```text
//! files ──every few seconds, where they changed──> pair ──> table: exact names, wildcards, the default one
//!                                  └─ unusable: logged and counted, the previous one stays
//! ```

mod clients;
mod files;
mod pair;
mod table;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::{Mutex, RwLock};
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::metrics::Metrics;
use clients::ClientAuthorities;
pub(crate) use clients::ClientCertificate;
pub use files::CertificateFiles;
use files::Stamp;
pub use pair::PairError;
use pair::{Pair, PairFiles};
use table::Table;

/// HTTP/2 and HTTP/1.1 in ALPN.
pub(crate) const H2: &[u8] = b"h2";
const HTTP_1_1: &[u8] = b"http/1.1";
/// How often the files are checked for changes.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// A gateway's listeners: plain HTTP, and TLS if there are certificates.
#[derive(Debug)]
pub struct Listeners {
    /// For plain HTTP.
    pub plain: TcpListener,
    /// For HTTPS.
    pub tls: Option<(TcpListener, CertificateFiles)>,
    /// For calls of functions, which workers pass on.
    pub functions: Option<TcpListener>,
}

impl From<TcpListener> for Listeners {
    fn from(plain: TcpListener) -> Self {
        Self {
            plain,
            tls: None,
            functions: None,
        }
    }
}

/// Why TLS is not possible.
#[derive(Debug, thiserror::Error)]
pub enum CertificatesError {
    /// The directory cannot be read.
    #[error("{place}: the certificates cannot be looked for")]
    Look {
        /// The directory.
        place: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The configured pair, or every pair in the directory, cannot be used.
    #[error("a certificate cannot be used")]
    Pair(#[from] PairError),
    /// There is no certificate.
    #[error("{0}: no certificate is there: put NAME.crt and NAME.key, or NAME/fullchain.pem and NAME/privkey.pem")]
    None(String),
    /// TLS cannot be set up.
    #[error("TLS cannot be set up")]
    Tls(#[from] rustls::Error),
}

#[derive(Debug)]
pub(crate) struct Certificates {
    files: CertificateFiles,
    provider: Arc<CryptoProvider>,
    /// Whose certificates clients may show.
    clients: Option<Arc<ClientAuthorities>>,
    /// What new handshakes are made with.
    config: RwLock<Arc<ServerConfig>>,
    table: Arc<RwLock<Arc<Table>>>,
    /// Stamps of each pair's files when last read, usable or not.
    seen: Mutex<HashMap<Arc<str>, [Stamp; 2]>>,
}

impl Certificates {
    /// Reads the certificates. An unusable one in a directory is skipped if others can be used.
    pub(crate) fn open(files: CertificateFiles, metrics: &Metrics) -> Result<Arc<Self>, CertificatesError> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let found = files.pairs().map_err(|source| CertificatesError::Look {
            place: files.shown(),
            source,
        })?;
        let (mut pairs, mut first_error) = (Vec::new(), None);
        let mut seen = HashMap::new();
        for (n, at) in found.iter().enumerate() {
            seen.insert(at.name.clone(), at.stamps());
            match Pair::read(at, &provider) {
                Ok(pair) => pairs.push(Arc::new(pair)),
                Err(error) if n == 0 && files.pair.is_some() => return Err(error.into()),
                Err(error) => {
                    failed(&at.name, &error, metrics);
                    first_error.get_or_insert(error);
                }
            }
        }
        match (pairs.is_empty(), first_error) {
            (true, Some(error)) => return Err(error.into()),
            (true, None) => return Err(CertificatesError::None(files.shown())),
            (false, _) => {}
        }
        let clients = files.client_authorities.clone();
        let clients = clients
            .map(|file| ClientAuthorities::open(file, &provider))
            .transpose()?;
        let table = Arc::new(RwLock::new(Arc::new(Table::of(pairs))));
        let config = config(&provider, clients.as_ref(), &table)?;
        Ok(Arc::new(Self {
            files,
            provider,
            clients,
            config: RwLock::new(config),
            table,
            seen: Mutex::new(seen),
        }))
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.read().clone())
    }

    /// Whether clients may show certificates.
    pub(crate) fn ask_clients(&self) -> bool {
        self.clients.is_some()
    }

    /// The certificate that a client showed in its handshake.
    pub(crate) fn of_client(&self, session: &rustls::ServerConnection) -> Option<Arc<ClientCertificate>> {
        self.clients.as_ref()?.shown(session.peer_certificates())
    }

    /// Name of the pair shown for a host, or for none. Two hosts with the same pair may share a connection.
    pub(crate) fn shown_for(&self, host: Option<&str>) -> Arc<str> {
        self.table.read().pair_for(host).name.clone()
    }

    /// Expiry of each pair, with its name.
    pub(crate) fn expiries(&self) -> Vec<(Arc<str>, SystemTime)> {
        let table = self.table.read().clone();
        table.pairs().map(|pair| (pair.name.clone(), pair.expires)).collect()
    }

    /// Loads changed certificates. Runs until dropped.
    pub(crate) async fn keep_fresh(self: Arc<Self>, metrics: Arc<Metrics>) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let (this, metrics) = (self.clone(), metrics.clone());
            // A panic there is a bug; the certificates read before remain in use.
            drop(tokio::task::spawn_blocking(move || this.look(&metrics)).await);
        }
    }

    /// Reads the files that have changed. Blocks.
    fn look(&self, metrics: &Metrics) {
        self.look_at_clients(metrics);
        let found = match self.files.pairs() {
            Ok(found) => found,
            // Nothing changes as long as it cannot be read.
            Err(error) => {
                return tracing::warn!(place = self.files.shown(), %error, "certificates cannot be looked for");
            }
        };
        let before = self.table.read().clone();
        let mut seen = self.seen.lock();
        let is_new = |at: &PairFiles, stamps: &[Stamp; 2]| seen.get(&at.name) != Some(stamps);
        let stamped: Vec<_> = found.into_iter().map(|at| (at.stamps(), at)).collect();
        let is_gone = seen.keys().any(|name| stamped.iter().all(|(_, at)| at.name != *name));
        if !is_gone && !stamped.iter().any(|(stamps, at)| is_new(at, stamps)) {
            return;
        }
        let mut pairs = Vec::new();
        for (stamps, at) in &stamped {
            let kept = || before.pairs().find(|p| p.name == at.name).cloned();
            if !is_new(at, stamps) {
                pairs.extend(kept());
                continue;
            }
            match Pair::read(at, &self.provider) {
                Ok(pair) => {
                    tracing::info!(certificate = %at.name, hosts = pair.hosts.join(","), "a certificate was taken up");
                    metrics.certificate_read("loaded");
                    pairs.push(Arc::new(pair));
                }
                Err(error) => {
                    failed(&at.name, &error, metrics);
                    pairs.extend(kept());
                }
            }
        }
        *seen = stamped.into_iter().map(|(stamps, at)| (at.name, stamps)).collect();
        if pairs.is_empty() {
            return tracing::warn!(
                place = self.files.shown(),
                "no certificate is left there: the ones of before stay"
            );
        }
        *self.table.write() = Arc::new(Table::of(pairs));
    }
}

impl Certificates {
    fn look_at_clients(&self, metrics: &Metrics) {
        let Some(clients) = &self.clients else { return };
        let name = clients.file().display().to_string();
        match clients.look() {
            Ok(false) => {}
            Ok(true) => match config(&self.provider, Some(clients), &self.table) {
                Ok(config) => {
                    *self.config.write() = config;
                    tracing::info!(file = name, "authorities of clients were taken up");
                    metrics.certificate_read("loaded");
                }
                Err(error) => tracing::error!(file = name, %error, "new authorities of clients cannot be asked for"),
            },
            Err(error) => failed(&name, &error, metrics),
        }
    }
}

/// What handshakes are made with.
fn config(
    provider: &Arc<CryptoProvider>,
    clients: Option<&Arc<ClientAuthorities>>,
    table: &Arc<RwLock<Arc<Table>>>,
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let builder = match clients {
        Some(clients) => builder.with_client_cert_verifier(clients.asking()),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::new(HostCertificateResolver(table.clone())));
    config.alpn_protocols = vec![H2.to_vec(), HTTP_1_1.to_vec()];
    Ok(Arc::new(config))
}

fn failed(name: &str, error: &PairError, metrics: &Metrics) {
    metrics.certificate_read("failed");
    tracing::error!(
        certificate = name,
        error = error as &dyn std::error::Error,
        "a certificate cannot be used: the one of before stays, if there was one"
    );
}

/// Shows the pair of the host that a client names.
#[derive(Debug)]
struct HostCertificateResolver(Arc<RwLock<Arc<Table>>>);

impl ResolvesServerCert for HostCertificateResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.read().pair_for(hello.server_name()).certified.clone())
    }
}

#[cfg(test)]
mod tests;

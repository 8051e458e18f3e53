//! Options for a gateway's hosts and for HTTPS to its clients, shared by `fn up` and `fn gateway`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{ArgGroup, Args};
use rekindle_gateway::{CertificateFiles, DomainName, Hosts, Listeners};
use rekindle_wire::function_config::parse_duration;
use tokio::net::TcpListener;

/// By which hosts and how safely clients reach the gateway.
#[derive(Debug, Clone, Args)]
#[command(group = ArgGroup::new("certificates").multiple(true))]
pub(crate) struct HttpsArgs {
    /// A domain below which functions have their hosts, NAME.DOMAIN, besides NAME.localhost; may be repeated.
    #[arg(long, value_name = "DOMAIN", env = "FN_DOMAIN", value_delimiter = ',')]
    pub(crate) domain: Vec<DomainName>,
    /// The only host that serves the API, besides this machine; without it every host that is no function's does.
    #[arg(long, value_name = "HOST", env = "FN_API_HOST")]
    pub(crate) api_host: Option<DomainName>,
    /// A certificate for clients with its chain (PEM): turns HTTPS on. It is shown if no other has the host's name, and
    /// read again when it changes.
    #[arg(
        long,
        value_name = "FILE",
        env = "FN_TLS_CERT",
        requires = "tls_key",
        group = "certificates"
    )]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The key of --tls-cert (PEM).
    #[arg(long, value_name = "FILE", env = "FN_TLS_KEY", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// A directory of certificates with their keys, each shown for the hosts that it names: NAME.crt and NAME.key, or
    /// NAME/fullchain.pem and NAME/privkey.pem. Turns HTTPS on; new files are loaded automatically.
    #[arg(long, value_name = "DIR", env = "FN_TLS_DIR", group = "certificates")]
    pub(crate) tls_dir: Option<PathBuf>,
    /// Authorities (PEM) whose certificates clients may show in place of keys, where `fn access` says so; read again
    /// when the file changes.
    #[arg(long, value_name = "FILE", env = "FN_CLIENT_CA", requires = "certificates")]
    pub(crate) client_ca: Option<PathBuf>,
    /// Where the gateway listens for HTTPS.
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "FN_TLS_LISTEN",
        default_value = "127.0.0.1:8443"
    )]
    pub(crate) tls_listen: SocketAddr,
    /// Redirect plain requests to HTTPS, at this port as clients see it; except /healthz and /readyz, and requests of
    /// this machine to itself.
    #[arg(
        long,
        value_name = "PORT",
        env = "FN_REDIRECT_HTTPS",
        requires = "certificates",
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    pub(crate) redirect_https: Option<u16>,
    /// How long browsers must use only HTTPS for a host (Strict-Transport-Security); 0s takes it back.
    #[arg(long, value_name = "DURATION", env = "FN_HSTS", requires = "certificates", value_parser = parse_duration)]
    pub(crate) hsts: Option<Duration>,
}

impl HttpsArgs {
    /// Sets the gateway's hosts and redirects.
    pub(crate) fn set(&self, config: &mut rekindle_gateway::Config) {
        config.hosts = Hosts {
            domains: self.domain.clone(),
            api: self.api_host.clone(),
        };
        config.redirect = self.redirect_https;
        config.hsts = self.hsts;
    }

    /// The gateway's listeners.
    pub(crate) async fn listeners(&self, plain: TcpListener) -> Result<Listeners> {
        if self.tls_cert.is_none() && self.tls_dir.is_none() {
            return Ok(plain.into());
        }
        let files = CertificateFiles {
            pair: self.tls_cert.clone().zip(self.tls_key.clone()),
            directory: self.tls_dir.clone(),
            client_authorities: self.client_ca.clone(),
        };
        let listener = TcpListener::bind(self.tls_listen).await.with_context(|| {
            format!(
                "{}: the gateway cannot listen for HTTPS: stop what does, or choose another --tls-listen",
                self.tls_listen
            )
        })?;
        Ok(Listeners {
            plain,
            tls: Some((listener, files)),
            functions: None,
        })
    }
}

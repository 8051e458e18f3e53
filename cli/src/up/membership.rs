//! How a role's process obtains its certificate at its start: it has one, or joins with a token, or its cluster has no
//! authority and it needs none.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rekindle_identity::{Authority, CertificateIssuer, Member, Peer, Role, Token, join};

use super::layout::Layout;
use super::secret_file;

/// Directory of the authority on the scheduler's host.
pub(crate) const AUTHORITY: &str = "cluster";
/// Directory of a host's own key and certificate.
const IDENTITY: &str = "identity";

/// `host:port` of a scheduler's address.
pub(super) fn bare(scheduler: &str) -> &str {
    scheduler.split_once("://").map_or(scheduler, |(_, address)| address)
}

/// `host:port` of several addresses, separated by commas.
pub(super) fn bare_all(schedulers: &str) -> String {
    let all: Vec<_> = schedulers.split(',').map(|s| bare(s.trim())).collect();
    all.join(",")
}

/// The scheduler's authority, if the cluster has one.
pub(super) fn issuing(layout: &Layout, life: Duration) -> Result<Option<Arc<CertificateIssuer>>> {
    match Authority::open(&layout.data.join(AUTHORITY))? {
        Some(authority) => Ok(Some(Arc::new(CertificateIssuer::new(
            authority,
            &layout.data.join(IDENTITY),
            life,
        )?))),
        None => Ok(None),
    }
}

/// What a gateway or a worker starts with.
pub(super) struct JoinSettings<'a> {
    pub(super) data: &'a Path,
    pub(super) scheduler: &'a str,
    pub(super) token: Option<&'a Token>,
    /// File for the secret that every call carries.
    pub(super) token_file: &'a Path,
    pub(super) peer: Peer,
}

/// The role's certificate. Joins if it has none and was given a token. `None` if roles speak plain HTTP.
pub(super) async fn member(joining: JoinSettings<'_>) -> Result<Option<Arc<Member>>> {
    let JoinSettings {
        data,
        scheduler,
        token,
        token_file,
        peer,
    } = joining;
    let directory = data.join(IDENTITY);
    let member = match (Member::open(&directory)?, token) {
        (Some(member), _) => member,
        (None, Some(token)) => {
            let (member, secret) = join(&bare_all(scheduler), token, &peer, &directory)
                .await
                .context("this host could not join the cluster")?;
            secret_file::keep(token_file, &secret)?;
            tracing::info!(target: super::LOG, member = %member.peer(), "joined the cluster");
            member
        }
        (None, None) if scheduler.starts_with("https://") => bail!(
            "{}: this host has not joined the cluster: get a token from `fn cluster token --role {}` on the \
             scheduler's host, and start with --join TOKEN",
            directory.display(),
            peer.role
        ),
        (None, None) => return Ok(None),
    };
    if scheduler.starts_with("http://") {
        bail!("{scheduler}: this host has joined a cluster, whose scheduler speaks TLS: say https://, or nothing");
    }
    if *member.peer() != peer && (member.peer().role != peer.role || peer.role == Role::Worker) {
        bail!(
            "{}: holds the certificate of the {}, and this is the {peer}: remove it and join again",
            directory.display(),
            member.peer()
        );
    }
    Ok(Some(Arc::new(member)))
}

//! Lists revoked members of the cluster, and revokes one. Members wait for
//! news.

use std::time::Duration;

use rekindle_identity::{AwaitRevocations, CertificateIssuer, Peer, Revocations, Role};
use rekindle_wire::api::{Revocation, RevokeRequest};
use rekindle_wire::clock::unix_s;
use rekindle_wire::interface::Call;
use rekindle_wire::interface::users::{ListRevocations, Revoke};
use rekindle_wire::{ApiError, ErrorCode};

use super::members::no_authority;
use super::workers::the_worker;
use crate::placing::pump;
use crate::refusal::{Refused, from_store};
use crate::state::Scheduler;

/// Longest time that a member waits for news.
const WAIT_LIMIT: Duration = Duration::from_secs(30);
/// Maximum number of revoked members: each role holds them in memory.
const REVOKED_MAX: u64 = 10_000;
/// Maximum length of a member's name.
const NAME_MAX: usize = 63;

pub(super) async fn list(scheduler: Scheduler, _: Call<ListRevocations>) -> Result<Vec<Revocation>, Refused> {
    let revoked = scheduler.store.revocations().await.map_err(from_store)?;
    let told = revoked.into_iter().map(|(peer, since)| told(&peer, since));
    Ok(told.collect())
}

fn told(peer: &Peer, since_unix_s: i64) -> Revocation {
    Revocation {
        role: peer.role.to_string(),
        name: peer.name.clone(),
        since_unix_s,
    }
}

/// Revokes a member. Once this answers, the scheduler refuses it. The other roles do when they have received the news,
/// which they wait for.
pub(super) async fn revoke(scheduler: Scheduler, call: Call<Revoke>) -> Result<Revocation, Refused> {
    let issuing = scheduler.config.issuing.as_ref().ok_or_else(no_authority)?;
    let peer = meant(&scheduler, &call.body)?;
    let revoked = issuing.member().revoked();
    if revoked.revision() >= REVOKED_MAX && !revoked.has(&peer) {
        let message =
            format!("{REVOKED_MAX} members are revoked already: make a new authority and have all others join it");
        return Err(ApiError::new(ErrorCode::Conflict, message));
    }
    // Stored first: what was answered survives a restart.
    scheduler.store.revoke(&peer, unix_s()).await.map_err(from_store)?;
    take_in(&scheduler, issuing).await?;
    let all = scheduler.store.revocations().await.map_err(from_store)?;
    let since = all.iter().find_map(|(p, since)| (*p == peer).then_some(*since));
    Ok(told(&peer, since.unwrap_or_else(unix_s)))
}

/// The member that an operator means. A known worker may be named by its id, its address or its host name, and any
/// member by the name in its certificate.
fn meant(scheduler: &Scheduler, asked: &RevokeRequest) -> Result<Peer, ApiError> {
    let bad = |message: String| ApiError::new(ErrorCode::BadRequest, message);
    let role: Role = asked.role.parse().map_err(bad)?;
    let name = match role {
        Role::Scheduler => {
            return Err(bad(
                "a scheduler's certificate is made with the authority's key: who has that needs a new authority, `fn \
                 cluster init` elsewhere"
                    .to_owned(),
            ));
        }
        Role::Worker => match the_worker(scheduler, &asked.name) {
            Ok(id) => id.to_string(),
            Err(error) if error.code == ErrorCode::BadRequest => return Err(error),
            Err(_) => asked
                .name
                .parse::<rekindle_wire::WorkerId>()
                .map_err(|_| bad(format!("no worker is called \"{}\": give its id", asked.name)))?
                .to_string(),
        },
        Role::Gateway => asked.name.clone(),
    };
    let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(is_plain) {
        return Err(bad(format!(
            "{name:?} is not a name of a member: it is in its certificate"
        )));
    }
    Ok(Peer { role, name })
}

/// Enforces the stored revocations against all members: their connections here end, what runs on revoked workers is
/// gone, and everybody is told.
pub(crate) async fn take_in(scheduler: &Scheduler, issuing: &CertificateIssuer) -> Result<(), ApiError> {
    let all = scheduler.store.revocations().await.map_err(from_store)?;
    issuing.member().revoked().add(all.iter().map(|(peer, _)| peer.clone()));
    {
        let mut state = scheduler.state();
        let now = scheduler.now();
        let state = &mut *state;
        for (peer, _) in all.iter().filter(|(peer, _)| peer.role == Role::Worker) {
            if let Ok(id) = peer.name.parse() {
                state.fleet.expel(&id, now);
            }
        }
    }
    scheduler.revoked.send_replace(issuing.member().revoked().revision());
    scheduler.recalls.notify_waiters();
    pump(scheduler);
    Ok(())
}

/// Answers as soon as more members are revoked than the caller knows, or when the wait is over.
pub(super) async fn news(scheduler: Scheduler, call: Call<AwaitRevocations>) -> Result<Revocations, Refused> {
    let AwaitRevocations {
        revision: known,
        wait_ms,
    } = call.at;
    let mut revision = scheduler.revoked.subscribe();
    let wait = Duration::from_millis(wait_ms.unwrap_or(0)).min(WAIT_LIMIT);
    // On timeout or shutdown, answers with the current list.
    drop(tokio::time::timeout(wait, revision.wait_for(|ours| *ours > known)).await);
    let all = scheduler.store.revocations().await.map_err(from_store)?;
    let members: Vec<Peer> = all.into_iter().map(|(peer, _)| peer).collect();
    Ok(Revocations {
        revision: members.len() as u64,
        members,
    })
}

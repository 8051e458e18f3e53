//! `/v1/revocations`: lists revoked members of the cluster, and revokes one. Members read news from
//! `/internal/revocations`.

use std::time::Duration;

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Query, State};
use rekindle_identity::{Issuing, Peer, Revocations, Role};
use rekindle_wire::api::{Revocation, RevokeRequest};
use rekindle_wire::{ApiError, ErrorCode};
use serde::Deserialize;

use super::members::no_authority;
use super::workers::the_worker;
use super::{Refused, bad_json, bad_query, from_store};
use crate::placing::pump;
use crate::state::{Scheduler, unix_s};

/// Longest time that a member waits for news.
const WAIT_LIMIT: Duration = Duration::from_secs(30);
/// Maximum number of revoked members: each role holds them in memory.
const REVOKED_MAX: u64 = 10_000;
/// Maximum length of a member's name.
const NAME_MAX: usize = 63;

pub(super) async fn list(State(scheduler): State<Scheduler>) -> Result<Json<Vec<Revocation>>, Refused> {
    let revoked = scheduler.store.revocations().await.map_err(from_store)?;
    let told = revoked.into_iter().map(|(peer, since)| told(&peer, since));
    Ok(Json(told.collect()))
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
pub(super) async fn revoke(
    State(scheduler): State<Scheduler>,
    asked: Result<Json<RevokeRequest>, JsonRejection>,
) -> Result<Json<Revocation>, Refused> {
    let Json(asked) = asked.map_err(bad_json)?;
    let issuing = scheduler.config.issuing.as_ref().ok_or_else(no_authority)?;
    let peer = meant(&scheduler, &asked)?;
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
    Ok(Json(told(&peer, since.unwrap_or_else(unix_s))))
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
pub(crate) async fn take_in(scheduler: &Scheduler, issuing: &Issuing) -> Result<(), ApiError> {
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

#[derive(Debug, Deserialize)]
pub(super) struct Known {
    revision: u64,
    #[serde(default)]
    wait_ms: u64,
}

/// Answers as soon as more members are revoked than the caller knows, or when the wait is over.
pub(super) async fn news(
    State(scheduler): State<Scheduler>,
    known: Result<Query<Known>, QueryRejection>,
) -> Result<Json<Revocations>, Refused> {
    let Query(known) = known.map_err(bad_query)?;
    let mut revision = scheduler.revoked.subscribe();
    let wait = Duration::from_millis(known.wait_ms).min(WAIT_LIMIT);
    // On timeout or shutdown, answers with the current list.
    drop(tokio::time::timeout(wait, revision.wait_for(|ours| *ours > known.revision)).await);
    let all = scheduler.store.revocations().await.map_err(from_store)?;
    let members: Vec<Peer> = all.into_iter().map(|(peer, _)| peer).collect();
    Ok(Json(Revocations {
        revision: members.len() as u64,
        members,
    }))
}

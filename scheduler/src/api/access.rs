//! Keys of the API, rules of access, and namespaces.

use std::time::Duration;

use rekindle_wire::Namespace;
use rekindle_wire::access::{Caller, Scope};
use rekindle_wire::api::{AccessRule, KeySummary, NamespaceSummary, NewKey, RemovedRule, RevokedKey};
use rekindle_wire::interface::Call;
use rekindle_wire::interface::scheduler::AwaitKeys;
use rekindle_wire::interface::users::{
    AddRule, CreateKey, CreateNamespace, EncryptNamespace, ListKeys, ListNamespaces, ListRules, RemoveNamespace,
    RemoveRule, RevokeKey,
};
use rekindle_wire::internal::KeysResponse;

use crate::access::{keys, namespaces, rules};
use crate::audit;
use crate::refusal::Refused;
use crate::seals;
use crate::state::Scheduler;

/// Longest time that a watch is kept open.
const WATCH_LIMIT: Duration = Duration::from_secs(30);

pub(super) async fn create_key(scheduler: Scheduler, call: Call<CreateKey>) -> Result<NewKey, Refused> {
    let caller = Caller::of(&call.head.headers)?;
    let made = keys::create(&scheduler, caller, call.body).await?;
    let key = &made.summary;
    let scope = Scope::of(key.namespace.clone(), key.function.as_ref());
    audit::note(key.namespace.as_ref(), format!("{} {} {scope}", key.id, key.role));
    Ok(made)
}

pub(super) async fn list_keys(scheduler: Scheduler, call: Call<ListKeys>) -> Result<Vec<KeySummary>, Refused> {
    Ok(keys::list(&scheduler, &Caller::of(&call.head.headers)?))
}

pub(super) async fn revoke_key(scheduler: Scheduler, call: Call<RevokeKey>) -> Result<RevokedKey, Refused> {
    let caller = Caller::of(&call.head.headers)?;
    let id = call.at.id;
    let all = scheduler.keys.all();
    let of = all
        .iter()
        .find(|key| key.id == id)
        .and_then(|key| key.namespace.as_ref())
        .filter(|namespace| caller.meets(namespace));
    audit::note(of, id.to_string());
    keys::revoke(&scheduler, caller, id).await
}

pub(super) async fn add_rule(scheduler: Scheduler, call: Call<AddRule>) -> Result<AccessRule, Refused> {
    let caller = Caller::of(&call.head.headers)?;
    let rule = rules::add(&scheduler, caller, call.body).await?;
    let (scope, admits) = (rule.scope(), &rule.admits);
    audit::note(
        rule.namespace.as_ref(),
        format!("{} {} {scope} {admits}", rule.id, rule.role),
    );
    Ok(rule)
}

pub(super) async fn list_rules(scheduler: Scheduler, call: Call<ListRules>) -> Result<Vec<AccessRule>, Refused> {
    Ok(rules::list(&scheduler, &Caller::of(&call.head.headers)?))
}

pub(super) async fn remove_rule(scheduler: Scheduler, call: Call<RemoveRule>) -> Result<RemovedRule, Refused> {
    let caller = Caller::of(&call.head.headers)?;
    let id = call.at.id;
    let all = scheduler.keys.rules();
    let of = all
        .iter()
        .find(|rule| rule.id == id)
        .and_then(|rule| rule.namespace.as_ref())
        .filter(|namespace| caller.meets(namespace));
    audit::note(of, id.to_string());
    rules::remove(&scheduler, caller, id).await
}

pub(super) async fn list_namespaces(
    scheduler: Scheduler,
    call: Call<ListNamespaces>,
) -> Result<Vec<NamespaceSummary>, Refused> {
    namespaces::list(&scheduler, &Caller::of(&call.head.headers)?).await
}

pub(super) async fn create_namespace(
    scheduler: Scheduler,
    call: Call<CreateNamespace>,
) -> Result<NamespaceSummary, Refused> {
    let name = call.at.namespace;
    namespaces::make(&scheduler, name.clone()).await?;
    summary(&scheduler, name).await
}

pub(super) async fn encrypt_namespace(
    scheduler: Scheduler,
    call: Call<EncryptNamespace>,
) -> Result<NamespaceSummary, Refused> {
    let name = call.at.namespace;
    seals::encrypt(&scheduler, name.clone()).await?;
    summary(&scheduler, name).await
}

async fn summary(scheduler: &Scheduler, name: Namespace) -> Result<NamespaceSummary, Refused> {
    let all = namespaces::list(scheduler, &Caller::platform()).await?;
    let found = all.into_iter().find(|namespace| namespace.name == name);
    // It may be removed again already.
    Ok(found.unwrap_or(NamespaceSummary {
        name,
        functions: 0,
        encrypted: false,
    }))
}

pub(super) async fn remove_namespace(scheduler: Scheduler, call: Call<RemoveNamespace>) -> Result<(), Refused> {
    namespaces::remove(&scheduler, call.at.namespace).await
}

/// Answers as soon as the gateway lacks a change of a key, or with nothing when the wait is over.
pub(super) async fn keys(scheduler: Scheduler, call: Call<AwaitKeys>) -> Result<KeysResponse, Refused> {
    let at = call.at;
    let followed = &scheduler.keys.followed;
    let known = at.revision.filter(|_| at.epoch.as_ref() == Some(&followed.epoch));
    followed.note_applied(&at.gateway, known.unwrap_or(0));
    let wait = Duration::from_millis(at.wait_ms.unwrap_or(0)).min(WATCH_LIMIT);
    let mut newest = followed.revision.subscribe();
    // Subscribed before the check: a change in between is not missed.
    if known == Some(scheduler.keys.revision()) {
        let _waited_long_enough = tokio::time::timeout(wait, newest.changed()).await;
    }
    Ok(scheduler.keys.since(known))
}

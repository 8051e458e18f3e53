//! Deploys: make a new version from a folder, or only if the folder has changed. A check tells beforehand what the
//! platform lacks for one.

use std::path::Path;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use http::{HeaderMap, StatusCode};
use rekindle_wire::access::{AccessRole, Caller, Scope};
use rekindle_wire::api::{Alias, DeployCheck, Quota, QuotaKind, Reused, STEP_MAX_S, STEP_S, VersionInfo};
use rekindle_wire::clock::unix_s;
use rekindle_wire::error::chain;
use rekindle_wire::function_config::{SettingChange, Work};
use rekindle_wire::interface::users::{CheckDeploy, Deploy};
use rekindle_wire::interface::{Call, Params};
use rekindle_wire::internal::{BuiltLayers, VersionSpec};
use rekindle_wire::{AliasName, ApiError, ErrorCode, FunctionId, Namespace, SecretName};

use super::named;
use crate::access::namespaces;
use crate::audit;
use crate::canary::{self, Growth};
use crate::cluster::ClusterState;
use crate::objects::source_key;
use crate::prepare::{self, Plan, Release};
use crate::refusal::{Refused, from_store};
use crate::releases;
use crate::state::{DEPLOYS_MAX, Scheduler};
use crate::store::Source;
use crate::upload::{self, Folder};

/// After how many seconds a deploy that was one too many may be tried again.
const DEPLOY_AGAIN_S: u32 = 10;

/// Takes the folder as `.tar.gz` and answers 202 with the version, which is then prepared. If the request is for a
/// changed folder only, and the newest version was made from this one, it answers 200 with that version, which serves.
/// Where only settings differ from the live version, nothing is built then.
pub(super) async fn deploy(
    State(scheduler): State<Scheduler>,
    Params(wanted): Params<Deploy>,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<VersionInfo>), Refused> {
    let release = release(&wanted)?;
    let caller = Caller::of(&headers)?;
    let namespace = wanted.namespace.unwrap_or_default();
    if !caller.meets(&namespace) {
        caller.check(AccessRole::Deployer, &Scope::Namespace(namespace.clone()))?;
    }
    let is_known = scheduler.state().catalog.check_namespace(namespace.as_str());
    // Who may deploy into any namespace may also make one.
    let is_new = is_known.is_err();
    if !caller.has(AccessRole::Deployer, &Scope::Platform) {
        is_known?;
    }
    audit::charge(
        &scheduler,
        &caller,
        AccessRole::Deployer,
        &Scope::Namespace(namespace.clone()),
    )?;
    let of_namespace = scheduler.uploads.take(&caller, &namespace).await?;
    // Before the upload, which is the larger part of the work.
    let place = scheduler.deploys.clone().try_acquire_owned().map_err(|_| {
        ApiError::new(
            ErrorCode::Throttled,
            format!("{DEPLOYS_MAX} deploys are under way: wait for them (`fn list`), and deploy again"),
        )
    })?;
    let limits = *scheduler.state().fleet.quotas.of(namespace.as_str()).0;
    let build = scheduler.builds.begin(namespace.as_str(), &limits);
    let build = build.map_err(|over| over.error(namespace.as_str(), Some(DEPLOY_AGAIN_S)))?;
    let upload = upload::receive(body, &scheduler.config.spool).await?;
    drop(of_namespace);
    let function = FunctionId::new(&namespace, &upload.folder.config.name);
    audit::note(Some(&namespace), function.name().to_owned());
    // Uploads take long, and a key that was revoked meanwhile must not leave a version behind.
    let scope = Scope::Function(function.clone());
    scheduler
        .keys
        .recheck(&caller, AccessRole::Deployer, &scope, unix_s())?;
    check_name(&scheduler, &function).await?;
    if is_new {
        namespaces::make(&scheduler, namespace.clone()).await?;
    }
    let secrets = scheduler.secrets.of(&function, &upload.folder.config);
    secrets.map_err(|error| ApiError::new(ErrorCode::InvalidConfig, error.message))?;
    let key = source_key(&upload.digest);
    let only_changes = wanted.if_changed.unwrap_or(false);
    if only_changes && let Some(version) = scheduler.store.unchanged(&function, &key).await.map_err(from_store)? {
        let serves_alone = |state: &ClusterState| {
            let mut aliases = state.catalog.aliases(&function);
            let live = aliases.find(|alias| alias.name.is_live());
            live.is_some_and(|live| matches!(&*live.targets, [only] if only.version == version.version))
        };
        // Otherwise it was deployed without traffic, rolled back, or shares invocations with another.
        let is_alone = serves_alone(&scheduler.state());
        match release {
            Release::All if !is_alone => {
                releases::set(&scheduler, &function, Alias::of(AliasName::live(), version.version))
                    .await
                    .map(drop)?;
            }
            Release::Grow(growth) if !is_alone => {
                canary::grow(&scheduler, &function, version.version, growth).await?;
            }
            _ => {}
        }
        audit::note(Some(&namespace), format!("{} {}", function.name(), version.version));
        return Ok((StatusCode::OK, Json(version)));
    }
    let code = upload.folder.code().to_hex().to_string();
    let (plan, reused) = match only_changes {
        true => plan(&scheduler, &function, &upload.folder, &code).await?,
        false => (Plan::Build, None),
    };
    let bytes = check_stored(&scheduler, &namespace, &limits, upload.file.path()).await?;
    // A delete must not mistake the folder for an unused one.
    let nobody_deletes = scheduler.sources.read().await;
    // Before the version is recorded: a version always has its source.
    let stored = scheduler.objects.put_file(&key, upload.file.path()).await;
    stored.map_err(|e| {
        ApiError::new(
            ErrorCode::Unavailable,
            format!("{}: check that the object store answers, and deploy again", chain(&e)),
        )
    })?;
    let source = Source {
        key: &key,
        code: Some(&code),
        bytes: Some(bytes),
        reused,
    };
    let version = scheduler
        .store
        .add_version(&function, &upload.folder.config, source, unix_s())
        .await
        .map_err(from_store)?;
    drop(nobody_deletes);
    let info = version.info.clone();
    audit::note(Some(&namespace), format!("{} {}", function.name(), info.version));
    prepare::begin(&scheduler, version, key, plan, (place, build), release);
    Ok((StatusCode::ACCEPTED, Json(info)))
}

/// What a deploy of the function would fail for, as far as that is known without its folder.
pub(super) async fn check(scheduler: Scheduler, call: Call<CheckDeploy>) -> Result<DeployCheck, Refused> {
    let CheckDeploy {
        name,
        namespace,
        base,
        secrets,
    } = call.at;
    let function = named(&scheduler, &name, namespace)?;
    let mut problems = Vec::new();
    match check_name(&scheduler, &function).await {
        Err(refused) if refused.code == ErrorCode::InvalidConfig => problems.push(refused.message),
        checked => checked?,
    }
    let secrets = secrets.unwrap_or_default();
    let names = secrets.split(',').filter(|name| !name.is_empty());
    let names: Result<Vec<SecretName>, _> = names.map(str::parse).collect();
    let names = names.map_err(|e| ApiError::new(ErrorCode::BadRequest, format!("secrets: {e}")))?;
    problems.extend(scheduler.secrets.problems(&function, &names));
    if let Some(base) = base {
        let base = base.as_str();
        let has = scheduler.objects.has(&format!("runtimes/{base}.json")).await;
        if !has.map_err(|e| ApiError::new(ErrorCode::Unavailable, chain(&e)))? {
            problems.push(format!(
                "the root filesystem \"{base}\" is not installed: the operator must add it: fn runtimes add {base}"
            ));
        }
    }
    Ok(DeployCheck { problems })
}

/// Refuses a folder for which the namespace has no room. What is built of it is not known yet. Returns its size.
async fn check_stored(
    scheduler: &Scheduler,
    namespace: &Namespace,
    limits: &Quota,
    folder: &Path,
) -> Result<u64, Refused> {
    let bytes = std::fs::metadata(folder).map_or(0, |file| file.len());
    if limits.stored_bytes.is_some() {
        let stored = scheduler.store.stored(Some(namespace)).await.map_err(from_store)?;
        let stored = stored.iter().map(|(_, bytes)| bytes).sum();
        if let Some(over) = limits.exceeded(QuotaKind::Stored, stored, bytes) {
            return Err(over.error(namespace.as_str(), None));
        }
    }
    Ok(bytes)
}

/// What the version is to serve.
fn release(wanted: &Deploy) -> Result<Release, Refused> {
    let step_s = wanted.step_s.unwrap_or(STEP_S);
    let bad = |message: &str| Err(ApiError::new(ErrorCode::BadRequest, message));
    match (wanted.traffic, &wanted.canary) {
        (Some(false), Some(_)) => bad("a canary has traffic: leave out one of canary and traffic=false"),
        (Some(false), None) => Ok(Release::Hold),
        (_, None) => Ok(Release::All),
        (_, Some(_)) if !(1..=STEP_MAX_S).contains(&step_s) => bad("a step takes 1 to 86400 seconds: change step_s"),
        (_, Some(steps)) => Ok(Release::Grow(Growth {
            steps: steps.clone(),
            step_s,
        })),
    }
}

/// What has to be done for a version of this folder: less where the live version was made of the same files.
async fn plan(
    scheduler: &Scheduler,
    function: &FunctionId,
    folder: &Folder,
    code: &str,
) -> Result<(Plan, Option<Reused>), Refused> {
    let live = scheduler.state().catalog.live(function);
    let Some(live) = live else {
        return Ok((Plan::Build, None));
    };
    let number = live.spec.version;
    let same = scheduler
        .store
        .of_code(function, number, code)
        .await
        .map_err(from_store)?;
    let Some(same) = same else {
        return Ok((Plan::Build, None));
    };
    let changes = live.spec.config.changes(&folder.config);
    let work = changes.iter().map(SettingChange::work).max();
    // A snapshot that could not be taken may be had this time.
    let is_whole = live.spec.snapshot.is_some() || !live.spec.config.snapshot;
    let plan = match work {
        Some(Work::Build) => return Ok((Plan::Build, None)),
        Some(Work::Boot) => Plan::Boot(built(&live.spec)),
        _ if !is_whole => Plan::Boot(built(&live.spec)),
        _ => Plan::TakeOver(Box::new((*live.spec).clone()), same.snapshot),
    };
    let reused = Reused {
        version: number,
        snapshot: matches!(plan, Plan::TakeOver(..)),
    };
    Ok((plan, Some(reused)))
}

fn built(spec: &VersionSpec) -> BuiltLayers {
    BuiltLayers {
        rootfs: spec.rootfs.clone(),
        layer: spec.layer.clone(),
        reaper: spec.reaper,
    }
}

/// Refuses names with `--` for new functions: they are reserved for what a host name may carry in addition to a
/// function. Existing functions with such a name keep it.
async fn check_name(scheduler: &Scheduler, name: &FunctionId) -> Result<(), Refused> {
    if !name.name().contains("--") || !scheduler.store.versions(name, 1).await.map_err(from_store)?.is_empty() {
        return Ok(());
    }
    Err(ApiError::new(
        ErrorCode::InvalidConfig,
        format!(
            "{name} has two hyphens in a row, which names of new functions may not have: write one (name in fn.toml)"
        ),
    ))
}

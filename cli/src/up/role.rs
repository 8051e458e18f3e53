//! One role each in its own process, for a cluster. The roles share a token and an object store. The scheduler, which
//! makes the token, is found by its address.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use rekindle_gateway::KeyHash;
use rekindle_identity::{Peer, Role};
use rekindle_snapshotter::Store;
use rekindle_wire::WorkerId;
use rekindle_wire::ids::GatewayId;
use rekindle_worker::WorkerConfig;
use rekindle_worker::host::network::Egress;
use rekindle_worker::idle::IdleSettings;
use tokio::net::TcpListener;

use super::layout::{Layout, make_private};
use super::master_key::MasterKeySource;
use super::membership::JoinSettings;
use super::pid;
use super::roles::{self, Roles};
use super::{isolation, leftovers, membership, secret_file, secrets, store};
use crate::args::{BuildArgs, CodecArgs, CollectingArgs, GatewayArgs, RoomArgs, S3Args, SchedulerArgs, WorkerArgs};
use crate::commands::doctor;

/// `fn gateway`.
pub(crate) fn gateway(args: &GatewayArgs) -> Result<ExitCode> {
    let key = secrets::admin_key(&args.key_file)?;
    let descriptors = isolation::raise_descriptor_limit();
    serve("gateway", async |roles: &mut Roles| {
        let mut listener = args.https.listeners(listen(args.listen).await?).await?;
        let functions_at = match args.functions_listen {
            None => None,
            Some(address) => {
                let (opened, reached) = function_calls(address, args.functions_advertise.as_deref()).await?;
                listener.functions = Some(opened);
                Some(reached)
            }
        };
        let member = membership::member(JoinSettings {
            data: &args.data,
            scheduler: &args.member.scheduler,
            token: args.join.as_ref(),
            token_file: &args.member.token_file,
            peer: Peer {
                role: Role::Gateway,
                name: GatewayId::generate().to_string(),
            },
        })
        .await?;
        let token = shared_token(&args.member.token_file)?;
        let scheduler = membership::bare_all(&args.member.scheduler);
        let mut config = rekindle_gateway::Config::new(scheduler, token, KeyHash::of(&key));
        config.member = member;
        config.functions_at = functions_at;
        config.callback_allow = args.callbacks.callback_allow.clone();
        config.token_issuers = args.tokens.jwt_issuer.clone();
        config.identities = args.tokens.identity.issuers();
        args.callers.limit(&mut config);
        args.https.set(&mut config);
        // One descriptor for the client, one for the worker.
        config.max_connections = isolation::connections_within(descriptors, 2, config.max_connections);
        roles.start("gateway", |stop| rekindle_gateway::serve(config, listener, stop.wait()));
        Ok(())
    })
}

/// `fn scheduler`.
pub(crate) fn scheduler(args: &SchedulerArgs) -> Result<ExitCode> {
    let layout = Layout::of(&args.places).context("the current directory is gone")?;
    let endpoint = endpoint(&args.s3)?;
    make_private([layout.data.clone(), layout.spool()])?;
    let Some(_lock) = pid::lock(&layout.data)? else {
        bail!(
            "{}: another scheduler or platform uses this data: stop it, or choose another --data",
            layout.data.display()
        );
    };
    let token = secrets::cluster_token(&args.token_file)?;
    let master_key = MasterKeySource::find(&layout.data, &args.sealing)?;
    let database = args.database.clone();
    let database = database.unwrap_or_else(|| layout.data.join("scheduler.db").into());
    let issuing = membership::issuing(&layout, args.certificate_life)?;
    serve("scheduler", async |roles: &mut Roles| {
        let listener = listen(args.listen).await?;
        let master_key = Box::pin(master_key.open(&database)).await?;
        let config = rekindle_scheduler::Config {
            database,
            address: args.advertise.clone().unwrap_or_else(|| args.listen.to_string()),
            spool: layout.spool(),
            cluster_token: token,
            master_key,
            objects: Arc::new(store::named(&args.s3, &endpoint).await?),
            collecting: collecting(&args.collecting),
            sharing: args.sharing.into(),
            idle_bin: args.retention.idle_bin,
            quota: args.quota.into(),
            rebalance_at: f64::from(args.rebalance_at) / 100.0,
            in_process: rekindle_relay::InProcessRoles::default(),
            issuing,
        };
        roles.start("scheduler", |stop| {
            rekindle_scheduler::serve(config, listener, stop.wait())
        });
        Ok(())
    })
}

/// `fn worker`.
pub(crate) fn worker(args: &WorkerArgs) -> Result<ExitCode> {
    let layout = Layout::of(&args.places).context("the current directory is gone")?;
    let endpoint = endpoint(&args.s3)?;
    if args.advertise.is_none() && args.listen.ip().is_unspecified() {
        bail!(
            "{} is no address that others can reach: name one with --advertise",
            args.listen
        );
    }
    let Some(_lock) = pid::lock(&layout.run)? else {
        bail!(
            "{}: another worker runs there: choose another --run",
            layout.run.display()
        );
    };
    make_private([layout.worker_data(), layout.worker_cache()])?;
    leftovers::sweep(&layout)?;
    isolation::enter(&layout.worker_run())?;
    isolation::raise_descriptor_limit();
    let served = serve("worker", async |roles: &mut Roles| {
        let listener = listen(args.listen).await?;
        let member = membership::member(JoinSettings {
            data: &layout.data,
            scheduler: &args.member.scheduler,
            token: args.join.as_ref(),
            token_file: &args.member.token_file,
            peer: Peer {
                role: Role::Worker,
                name: worker_id(&layout.worker_data().join("id"))?.to_string(),
            },
        })
        .await?;
        let token = shared_token(&args.member.token_file)?;
        let mut config = worker_config(WorkerSettings {
            layout: &layout,
            listen: args.listen,
            advertise: args.advertise.clone(),
            scheduler: &args.member.scheduler,
            token: &token,
            store: store::named(&args.s3, &endpoint).await?,
            criu: args.criu.as_deref(),
            room: args.room,
            codec: args.codec,
            egress: args.egress.egress(control(&args.member.scheduler, &endpoint)),
            building: &args.building,
        })?;
        config.offer.zone.clone_from(&args.offer.zone);
        config.offer.labels = args.offer.labels.iter().cloned().collect();
        config.offer.instances_max = args.offer.max_instances;
        config.leave_limit = args.offer.leave_limit;
        config.member = member;
        roles.allow(args.offer.leave_limit);
        roles.start("worker", |stop| rekindle_worker::serve(config, listener, stop.wait()));
        Ok(())
    });
    // Whatever the outcome: what the worker did not remove is removed now.
    let cleaned = leftovers::sweep_cgroups_of(&layout);
    served.and_then(|code| cleaned.map(|_| code))
}

/// The token as the scheduler made it.
fn shared_token(file: &Path) -> Result<String> {
    let missing = "the cluster's secret is made by `fn scheduler`: copy its cluster.token to this machine, or name it \
                   with --token-file";
    secret_file::read(file).context(missing)
}

/// Runs one role until it is told to stop.
fn serve(name: &'static str, start: impl AsyncFnOnce(&mut Roles) -> Result<()>) -> Result<ExitCode> {
    let runtime = roles::runtime()?;
    runtime.block_on(async {
        let _telemetry =
            rekindle_telemetry::init(&format!("rekindle-{name}")).context("logs and traces cannot be set up")?;
        let mut roles = Roles::new()?;
        start(&mut roles).await?;
        let served = roles.serve().await;
        served.and(roles.stop().await)
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("{address}: cannot be listened on"))
}

/// The listener for calls of functions, and where workers reach it.
async fn function_calls(address: SocketAddr, advertise: Option<&str>) -> Result<(TcpListener, String)> {
    if advertise.is_none() && address.ip().is_unspecified() {
        bail!("{address} is no address that workers can reach: name one with --functions-advertise");
    }
    let listener = listen(address).await?;
    let own = listener.local_addr().context("the port is not known")?.to_string();
    Ok((listener, advertise.map_or(own, str::to_owned)))
}

/// The store's endpoint. Roles in processes of their own need a store that all of them reach.
pub(super) fn endpoint(args: &S3Args) -> Result<String> {
    match &args.s3_endpoint {
        Some(endpoint) => Ok(endpoint.clone()),
        None => bail!("no object store is named: say --s3-endpoint URL, or set FN_S3_ENDPOINT"),
    }
}

/// When the scheduler collects.
pub(super) fn collecting(args: &CollectingArgs) -> rekindle_scheduler::CollectionSettings {
    rekindle_scheduler::CollectionSettings {
        every: args.collect_every,
        keep_versions: args.keep_versions,
        ..rekindle_scheduler::CollectionSettings::default()
    }
}

/// The parts of the cluster that no function may reach: the scheduler, and the object store if it is given by its
/// address. (A store with a name may be a cloud's, which functions use as well.)
fn control(scheduler: &str, endpoint: &str) -> Vec<String> {
    let rest = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest);
    let (store, _path) = rest.split_once('/').unwrap_or((rest, ""));
    let named = store.parse::<SocketAddr>().is_ok();
    let schedulers = membership::bare_all(scheduler);
    let schedulers = schedulers.split(',').map(str::to_owned);
    schedulers.chain(named.then(|| store.to_owned())).collect()
}

/// What a worker's configuration is made from.
pub(super) struct WorkerSettings<'a> {
    pub(super) layout: &'a Layout,
    /// Where it listens; others reach it there unless `advertise` says otherwise.
    pub(super) listen: SocketAddr,
    pub(super) advertise: Option<String>,
    /// `host:port`.
    pub(super) scheduler: &'a str,
    pub(super) token: &'a str,
    pub(super) store: Store,
    pub(super) criu: Option<&'a Path>,
    pub(super) room: RoomArgs,
    pub(super) codec: CodecArgs,
    pub(super) egress: Egress,
    pub(super) building: &'a BuildArgs,
}

/// A worker's configuration with the usual limits.
pub(super) fn worker_config(settings: WorkerSettings<'_>) -> Result<WorkerConfig> {
    let WorkerSettings {
        layout,
        listen,
        advertise,
        scheduler,
        token,
        store,
        criu,
        room,
        codec,
        egress,
        building,
    } = settings;
    let criu = match doctor::find_criu(criu) {
        Ok(found) => found,
        Err(lack) => bail!("CRIU: {}: {}", lack.found, lack.fix.unwrap_or_default()),
    };
    let id = worker_id(&layout.worker_data().join("id"))?;
    let url = format!("http://{}", membership::bare_all(scheduler));
    let mut config = WorkerConfig::new(id, listen, url, token.to_owned(), store);
    if let Some(address) = advertise {
        config.advertise = address;
    }
    config.data_dir = layout.worker_data();
    config.cache_dir = layout.worker_cache();
    config.run_dir = layout.worker_run();
    config.cgroup_parent = layout.cgroup.clone();
    config.criu_dir = criu.path.parent().unwrap_or(Path::new("/")).to_owned();
    config.codec = codec.codec();
    config.egress = egress;
    config.build_network = building.network();
    config.build_limits = building.limits();
    if let Some(bound) = codec.dump_in_memory {
        config.dump_in_memory_bytes = bound.0;
    }
    if let Some(memory) = room.memory {
        config.memory_capacity_bytes = memory.0;
    }
    if let Some(limit) = room.template_memory {
        config.template_bytes = limit.0;
    }
    if let Some(limit) = room.chunk_cache {
        config.chunk_cache_bytes = limit.0;
    }
    if let Some(limit) = room.layer_cache {
        config.layer_cache_bytes = limit.0;
    }
    if let Some(least) = room.lazy_images {
        config.lazy_image_bytes = (least > 0).then_some(least);
    }
    config.idle = IdleSettings {
        swap: room.idle_swap,
        after: room.idle_after,
        watch: room.idle_watch,
    };
    config.restorer = room.restorer;
    config.filter = room.function_filter;
    if let Some(limit) = room.disk_read {
        config.disk_read_bytes = limit;
    }
    Ok(config)
}

/// The worker's id, created once.
fn worker_id(path: &Path) -> Result<WorkerId> {
    if let Ok(text) = fs::read_to_string(path) {
        return text.trim().parse().with_context(|| {
            format!(
                "{}: holds no worker id: remove it, and the next start makes one",
                path.display()
            )
        });
    }
    let id = WorkerId::generate();
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).with_context(|| format!("{}: cannot be made", dir.display()))?;
    }
    let new = path.with_extension("new");
    fs::write(&new, format!("{id}\n"))
        .and_then(|()| fs::rename(&new, path))
        .with_context(|| format!("{}: cannot be written", path.display()))?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workers_id_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("worker/id");
        assert_eq!(worker_id(&path).unwrap(), worker_id(&path).unwrap());
        fs::write(&path, "nonsense").unwrap();
        assert!(worker_id(&path).is_err());
    }
}

//! The platform itself: every role in this process, in the order in which they need each other. [`start`] shows it.

use std::convert::Infallible;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rekindle_gateway::KeyHash;
use rekindle_relay::InProcessRoles;
use rekindle_snapshotter::Store;
use tokio::net::TcpListener;

use super::layout::{Layout, make_private};
use super::pid::{self, PidFile};
use super::roles::{self, Roles, until};
use super::secrets::Secrets;
use super::{background, isolation, leftovers, role, runtimes, store};
use crate::args::UpArgs;
use crate::client::Client;
use crate::commands::doctor;

/// Limit for the worker to report to the scheduler.
const WORKER_LIMIT: Duration = Duration::from_secs(60);
/// Where the worker passes on calls of functions, within this process.
const FUNCTIONS_AT: &str = "functions.gateway";
const STORE_LIMIT: Duration = Duration::from_secs(30);

/// Runs the platform until it is told to stop. Blocks, and must be called before the process has threads.
pub(super) fn run(args: &UpArgs, layout: &Layout) -> Result<ExitCode> {
    if args.detached {
        nix::unistd::setsid().context("no session of its own")?;
    }
    let lacking: Vec<_> = doctor::cheap().into_iter().filter(doctor::Check::stops).collect();
    if !lacking.is_empty() {
        doctor::print(&lacking);
        bail!("this machine lacks what the platform needs, see above and `fn doctor`");
    }
    let pid_file = PidFile::at(&layout.run);
    let Some(_run_lock) = pid_file.lock()? else {
        bail!(
            "{}: a platform runs there already: stop it with `fn down`",
            layout.run.display()
        );
    };
    make_private([
        layout.data.clone(),
        layout.spool(),
        layout.worker_data(),
        layout.worker_cache(),
    ])?;
    let Some(_data_lock) = pid::lock(&layout.data)? else {
        bail!(
            "{}: another platform uses this data: stop it, or choose another --data",
            layout.data.display()
        );
    };
    let swept = leftovers::sweep(layout)?;
    if swept != leftovers::RemovedLeftovers::default() {
        eprintln!(
            "removed what a killed platform had left: {} processes, {} cgroups",
            swept.processes, swept.cgroups
        );
    }
    isolation::enter(&layout.worker_run())?;
    let descriptors = isolation::raise_descriptor_limit();
    pid_file.record(args.listen, &layout.data)?;
    let outcome = roles::runtime()?.block_on(platform(args, layout, descriptors));
    // Whatever the outcome: what the worker did not remove is removed now, and the record with it.
    let cleaned = leftovers::sweep_cgroups_of(layout).and_then(|_| pid_file.forget());
    let _phase = fs::remove_file(layout.phase());
    let _store = fs::remove_file(layout.store());
    outcome.and(cleaned)?;
    Ok(ExitCode::SUCCESS)
}

async fn platform(args: &UpArgs, layout: &Layout, descriptors: u64) -> Result<()> {
    let _telemetry = rekindle_telemetry::init("rekindle").context("logs and traces cannot be set up")?;
    let mut roles = Roles::new()?;
    let served = match Box::pin(start(args, layout, descriptors, &mut roles)).await {
        Ok(true) => roles.serve().await,
        Ok(false) => Ok(()),
        Err(e) => Err(e),
    };
    let stopped = roles.stop().await;
    tracing::info!(target: super::LOG, "the platform has stopped");
    served.and(stopped)
}

/// Starts every role. Returns false if it was told to stop meanwhile.
async fn start(args: &UpArgs, layout: &Layout, descriptors: u64, roles: &mut Roles) -> Result<bool> {
    let secrets = Secrets::in_directory(&layout.data, &args.sealing)?;
    if secrets.admin_key_is_new {
        tracing::info!(target: super::LOG, file = %secrets.admin_key_file.display(), "made the admin key");
    }
    // Bound first: a port in use is the most common reason for a failed start.
    let gateway = TcpListener::bind(args.listen).await.with_context(|| {
        format!(
            "{}: the gateway cannot listen: stop what does, or choose another --listen",
            args.listen
        )
    })?;
    let gateway = args.https.listeners(gateway).await?;

    phase(layout, "opening the master key");
    let database = layout.data.join("scheduler.db").into();
    let opening = Box::pin(secrets.master_key.open(&database));
    let Some(master_key) = roles.while_running(opening).await? else {
        return Ok(false);
    };

    phase(layout, "opening the object store");
    let Some(store) = roles.while_running(Box::pin(open_store(args, layout))).await? else {
        return Ok(false);
    };

    phase(layout, "importing runtimes");
    let importing = Box::pin(runtimes::import(&store, &layout.cache));
    if roles.while_running(importing).await?.is_none() {
        return Ok(false);
    }

    phase(layout, "starting the scheduler");
    let (scheduler, scheduler_address) = loopback().await?;
    // Requests that a client waits for need no connection: from the gateway to the worker, and through the scheduler.
    let in_process = InProcessRoles::default();
    let config = rekindle_scheduler::Config {
        // On one machine the roles speak plain HTTP.
        issuing: None,
        in_process: in_process.clone(),
        database,
        address: scheduler_address.to_string(),
        spool: layout.spool(),
        cluster_token: secrets.cluster_token.clone(),
        master_key,
        objects: Arc::new(store.clone()),
        collecting: role::collecting(&args.collecting),
        sharing: args.sharing.into(),
        idle_bin: args.retention.idle_bin,
        quota: args.quota.into(),
        // There is no other worker to move to.
        rebalance_at: 0.0,
    };
    roles.start("scheduler", |stop| {
        rekindle_scheduler::serve(config, scheduler, stop.wait())
    });

    phase(layout, "starting the worker");
    let (worker, worker_address) = loopback().await?;
    let mut config = role::worker_config(role::WorkerSettings {
        layout,
        listen: worker_address,
        advertise: None,
        scheduler: &scheduler_address.to_string(),
        token: &secrets.cluster_token,
        store,
        criu: args.criu.as_deref(),
        room: args.room,
        codec: args.codec,
        egress: args.egress.egress(Vec::new()),
        building: &args.building,
    })?;
    config.in_process = in_process.clone();
    roles.start("worker", |stop| rekindle_worker::serve(config, worker, stop.wait()));
    let client = Client::with_token(&format!("http://{scheduler_address}"), &secrets.cluster_token)?;
    let alive = until("the worker", WORKER_LIMIT, || async {
        client.status().await.is_ok_and(|s| {
            s.workers
                .iter()
                .any(|w| w.alive && w.address == worker_address.to_string())
        })
    });
    if roles.while_running(alive).await?.is_none() {
        return Ok(false);
    }

    phase(layout, "starting the gateway");
    let mut config = rekindle_gateway::Config::new(
        scheduler_address.to_string(),
        secrets.cluster_token.clone(),
        KeyHash::of(&secrets.admin_key),
    );
    config.callback_allow = args.callbacks.callback_allow.clone();
    config.token_issuers = args.tokens.jwt_issuer.clone();
    config.identities = args.tokens.identity.issuers();
    args.callers.limit(&mut config);
    args.https.set(&mut config);
    config.in_process = in_process;
    config.functions_at = Some(FUNCTIONS_AT.to_owned());
    // One descriptor for the client, one into the function.
    config.max_connections = isolation::connections_within(descriptors, 2, config.max_connections);
    roles.start("gateway", |stop| rekindle_gateway::serve(config, gateway, stop.wait()));
    phase(layout, "up");
    tracing::info!(
        target: super::LOG, url = background::address(args.listen), key = %secrets.admin_key_file.display(),
        "the platform is up"
    );
    Ok(true)
}

/// Opens the platform's own store unless another one is named.
async fn open_store(args: &UpArgs, layout: &Layout) -> Result<Store> {
    let (store, url) = match &args.s3.s3_endpoint {
        None => store::own(layout, &args.s3.s3_bucket).await?,
        Some(url) => {
            let store = tokio::time::timeout(STORE_LIMIT, store::named(&args.s3, url)).await;
            let late = || format!("the object store does not answer within {STORE_LIMIT:?}");
            (store.with_context(late)??, url.clone())
        }
    };
    store::record(layout, &url, &args.s3)?;
    Ok(store)
}

async fn loopback() -> Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .context("no free port on loopback")?;
    let address = listener.local_addr().context("the port is not known")?;
    Ok((listener, address))
}

/// Reports the start's progress to whoever waits for it. A failed report is no failure of the start.
fn phase(layout: &Layout, text: &str) {
    tracing::info!(target: super::LOG, phase = text, "start");
    let new = layout.run.join("phase.new");
    let _untold: Result<(), Infallible> = fs::write(&new, text)
        .and_then(|()| fs::rename(&new, layout.phase()))
        .or(Ok(()));
}

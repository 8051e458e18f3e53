//! `rekindle-events`: reads messages from queues and invokes functions with them, as CloudEvents, through a gateway.
//! Which queues those are stands in the functions' `fn.toml`, as `[[source]]`.
//!
//! It keeps nothing: a message stays in its queue until the function has succeeded, or a dead letter is durable. So
//! any number of these programs run beside each other, and one that is killed loses nothing.
//!
//! `follow` has a `reader` for each source. A reader receives batches from a `queue` (`nats`, `sqs`), and `batch` has
//! each processed. An `event` is made of it, the `gateway` invokes the function, and the `verdict` says what becomes of
//! its messages. `pace` says how many are in flight.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test ends at the first surprise"))]

mod batch;
mod config;
mod event;
mod follow;
mod gateway;
mod metrics;
mod nats;
mod open;
mod pace;
mod progress;
mod queue;
mod reader;
mod server;
mod settings;
mod sqs;
#[cfg(test)]
mod testing;
mod verdict;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::follow::Follower;
use crate::gateway::Gateway;
use crate::metrics::Metrics;
use crate::server::ServerState;
use crate::settings::Settings;

/// `EX_CONFIG`: the unit is not started again.
const NOT_CONFIGURED: u8 = 78;

fn main() -> ExitCode {
    let failed = |code| {
        move |error| {
            eprintln!("rekindle-events: {error:#}");
            ExitCode::from(code)
        }
    };
    let configured = Settings::read().and_then(|settings| Ok((settings.config()?, settings)));
    let run = |(config, settings)| run(config, &settings).map_or_else(failed(1), |()| ExitCode::SUCCESS);
    configured.map_or_else(failed(NOT_CONFIGURED), run)
}

fn run(config: Config, settings: &Settings) -> Result<()> {
    let key = config::secret(&config.key_file).context("key-file")?;
    let gateway = Gateway::new(&config.gateway, key, config.ca.as_deref())?;
    if settings.is_check {
        print!("{}", settings.in_force(&config)?);
        return Ok(());
    }
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("the async runtime could not be started")?
        .block_on(serve(config, gateway))
}

async fn serve(config: Config, gateway: Gateway) -> Result<()> {
    let _telemetry = rekindle_telemetry::init("rekindle-events")?;
    // Several libraries speak TLS; all use the same cryptography. It fails only if that was said before.
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    let listener = TcpListener::bind(config.listen)
        .await
        .with_context(|| format!("{} cannot be listened on: set listen to another address", config.listen))?;
    let (stop, served) = (CancellationToken::new(), CancellationToken::new());
    stop_at_signals(stop.clone())?;
    let (config, metrics, name) = (Arc::new(config), Arc::new(Metrics::new()), name());
    tracing::info!(reader = name, listen = %config.listen, gateway = config.gateway, "reading sources of events");
    let follower = Follower::new(config, gateway, Arc::clone(&metrics), name);
    let told = ServerState {
        metrics,
        heard: follower.heard(),
    };
    let serving = tokio::spawn(server::serve(listener, told, served.clone()));
    follower.run(stop).await;
    served.cancel();
    // Its connections are of scrapers, which are not waited for.
    serving.abort();
    tracing::info!("stopped");
    Ok(())
}

/// A name that no other program has, for reports.
fn name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let plain = |c: &char| c.is_ascii_alphanumeric() || "-.".contains(*c);
    let host: String = host.trim().chars().filter(plain).take(60).collect();
    format!("{host}-{:08x}", rand::random::<u32>())
}

fn stop_at_signals(stop: CancellationToken) -> Result<()> {
    let kinds = [SignalKind::terminate(), SignalKind::interrupt()];
    for kind in kinds {
        let mut signals = signal(kind).context("signals cannot be awaited")?;
        let stop = stop.clone();
        tokio::spawn(async move {
            signals.recv().await;
            stop.cancel();
        });
    }
    Ok(())
}

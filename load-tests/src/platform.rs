//! Platforms started for a measurement.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use rekindle_testkit::cluster::{Role, Size};
use rekindle_testkit::s3::ObjectStore;
use rekindle_testkit::{Client, Cluster, Options, Platform};

use crate::args::Args;

/// Starts one with these settings in its environment, and waits until it is ready.
pub(crate) fn start(args: &Args, settings: &[(&str, &str)]) -> Result<Platform> {
    Platform::try_start(options(args, settings)?)
}

/// How to start one with these settings in its environment.
pub(crate) fn options(args: &Args, settings: &[(&str, &str)]) -> Result<Options> {
    Ok(Options {
        env: owned(settings),
        args: vec!["--criu".to_owned(), args.criu.display().to_string()],
        programs: args.bin.clone(),
        runtimes: Some(runtimes(args)?),
        ..Options::plain()
    })
}

/// A scheduler, a gateway and two workers on this machine, each with directories of its own, like separate hosts, and
/// the object store beside them.
pub(crate) fn cluster(args: &Args, settings: &[(&str, &str)]) -> Result<(Cluster, ObjectStore)> {
    let store = ObjectStore::start();
    let of = |place| {
        owned(settings)
            .into_iter()
            .map(move |(name, value)| (place, name, value))
    };
    let places = [
        Role::Scheduler.nth(0),
        Role::Worker.nth(0),
        Role::Worker.nth(1),
        Role::Gateway.nth(0),
    ];
    let size = Size {
        workers: 2,
        args: ["--criu".to_owned(), args.criu.display().to_string()]
            .map(|word| (Role::Worker, word))
            .to_vec(),
        env: places.into_iter().flat_map(of).collect(),
        on_this_host: true,
        programs: args.bin.clone(),
        runtimes: Some(runtimes(args)?),
        ..Size::default()
    };
    Ok((Cluster::start_sized(store.endpoint(), store.environment(), size), store))
}

/// The address of a platform's gateway.
pub(crate) fn address(client: &Client) -> Result<SocketAddr> {
    let url = client.url();
    let address = url.trim_start_matches("http://").parse();
    address.with_context(|| format!("{url}: no address"))
}

fn owned(settings: &[(&str, &str)]) -> Vec<(String, String)> {
    settings
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

/// The root filesystems' archives. They are not built here: that takes minutes.
fn runtimes(args: &Args) -> Result<PathBuf> {
    let runtimes = args.cache.join("runtimes");
    let found = runtimes.join("python.tar").exists();
    ensure!(
        found,
        "{}: no root filesystem of python: run scripts/setup.sh host",
        runtimes.display()
    );
    Ok(runtimes)
}

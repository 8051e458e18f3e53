//! `fn snapshot`: inspects snapshots in the object store and moves them in and out. It talks to the store itself, which
//! holds all of a snapshot, so that large data takes no detour. The exceptions are `gc` and `renew`, which the
//! scheduler does.

mod convert;
mod delete;
mod exchange;
mod gc;
mod inspect;
mod list;
mod renew;

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use rekindle_snapshotter::Store;
use rekindle_wire::api::CollectRequest;

use crate::args::{ClientArgs, SnapshotCommand, StoreArgs};
use crate::client::Client;
use crate::up;

/// Runs one of the commands, on a multi-threaded runtime: hashing and compressing use all cores.
pub(crate) fn execute(client: &ClientArgs, command: &SnapshotCommand) -> Result<ExitCode> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("the async runtime could not be started")?
        .block_on(Box::pin(run(client, command)))
}

async fn run(client: &ClientArgs, command: &SnapshotCommand) -> Result<ExitCode> {
    match command {
        SnapshotCommand::Gc {
            dry_run,
            take_over,
            listing,
        } => {
            let request = CollectRequest {
                dry_run: *dry_run,
                take_over: *take_over,
            };
            gc::run(&Client::new(client)?, &request, listing.json).await
        }
        SnapshotCommand::Renew { name, listing } => renew::run(&Client::new(client)?, name, listing.json).await,
        SnapshotCommand::List { store, listing } => list::run(&open(store).await?, *listing).await,
        SnapshotCommand::Inspect {
            what,
            program: true,
            store,
            ..
        } => inspect::program(what, store).await,
        SnapshotCommand::Inspect {
            what,
            svg,
            listing,
            store,
            ..
        } => inspect::run(what, svg.as_deref(), *listing, store).await,
        SnapshotCommand::Export { id, dir, store } => exchange::export_to(&open(store).await?, id, dir).await,
        SnapshotCommand::Import {
            dir,
            name,
            scratch,
            store,
        } => exchange::import_from(&open(store).await?, dir, name.as_deref(), scratch).await,
        SnapshotCommand::Compress {
            dir,
            block,
            acceleration,
            conversion,
        } => convert::compress(dir, *block, *acceleration, *conversion),
        SnapshotCommand::Decompress { dir, conversion } => convert::decompress(dir, *conversion),
        SnapshotCommand::Delete { id, force, store } => delete::run(&open(store).await?, id, *force).await,
    }
}

async fn open(args: &StoreArgs) -> Result<Store> {
    Box::pin(up::store::of_platform(&args.places, &args.s3)).await
}

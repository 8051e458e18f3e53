//! The command line of `fn snapshot`.

use clap::{Args, Subcommand};
use rekindle_wire::SnapshotId;

use super::{Listing, Places, S3Args};

/// `fn snapshot`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  fn snapshot list                 every snapshot in the platform's store
  fn snapshot delete s-0198c0de    remove one that was imported

The store is that of the platform that runs on this machine; --s3-endpoint names another one.")]
pub(crate) struct SnapshotArgs {
    #[command(subcommand)]
    pub(crate) command: SnapshotCommand,
}

/// What can be done with snapshots.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum SnapshotCommand {
    /// List the snapshots in the store.
    #[command(visible_alias = "ls")]
    List {
        #[command(flatten)]
        store: StoreArgs,
        #[command(flatten)]
        listing: Listing,
    },
    /// Remove a snapshot that was imported.
    #[command(visible_alias = "rm")]
    Delete {
        /// The snapshot.
        id: SnapshotId,
        /// Remove it although a function has it: its instances are booted from then on.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        store: StoreArgs,
    },
}

/// Which store: that of the platform whose run directory this is, unless one is named.
#[derive(Debug, Clone, Args)]
pub(crate) struct StoreArgs {
    #[command(flatten)]
    pub(crate) places: Places,
    #[command(flatten)]
    pub(crate) s3: S3Args,
}

//! The command line of `fn snapshot`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use rekindle_wire::SnapshotId;

use super::{FunctionArg, Listing, PlatformDirs, S3Args};

/// `fn snapshot`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  fn snapshot list                            every snapshot in the platform's store
  fn snapshot inspect s-0198c0de --svg map.svg  what is in it, and a picture of its memory
  fn snapshot inspect s-0198c0de --program    what restores it here, operation by operation
  fn snapshot export s-0198c0de images        what CRIU wrote, for stock `criu restore`
  fn snapshot import images --name nightly    plain, compressed or incremental images into the store
  fn snapshot delete s-0198c0de               remove one that was imported
  fn snapshot gc                              remove what nobody needs
  fn snapshot renew greet                     make a function's snapshot anew, while the old one serves
  fn snapshot compress images --block 64K     as CRIU 4.3 does; decompress is the way back

The store is that of the platform that runs on this machine; --s3-endpoint names another one.")]
pub(crate) struct SnapshotArgs {
    #[command(subcommand)]
    pub(crate) command: SnapshotCommand,
}

/// The commands of `fn snapshot`.
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
    /// Show the content of a snapshot or an image directory: mappings, how they are stored, the working set, what is
    /// shared.
    Inspect {
        /// The snapshot, or a directory that CRIU dumped into.
        #[arg(value_name = "ID|DIR")]
        what: String,
        /// Draw the memory map.
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
        /// Print the program that this host would restore the snapshot by, or why CRIU restores it.
        #[arg(long, conflicts_with_all = ["svg", "json"])]
        program: bool,
        #[command(flatten)]
        listing: Listing,
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Write a snapshot's images as CRIU wrote them, for stock `criu restore`.
    Export {
        /// The snapshot.
        id: SnapshotId,
        /// The directory; it must not exist yet.
        dir: PathBuf,
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Make a snapshot of a directory that CRIU dumped into: plain, compressed by CRIU 4.3, or with pre-dumps as
    /// parents.
    Import {
        /// The image directory.
        dir: PathBuf,
        /// Its name in listings; by default the directory's name.
        #[arg(long)]
        name: Option<String>,
        /// Where compressed or incremental images are unpacked meanwhile; needs room for all of their memory.
        #[arg(long, value_name = "DIR", env = "TMPDIR", default_value = "/tmp")]
        scratch: PathBuf,
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Compress the pages of an image directory in place, as CRIU 4.3 does.
    Compress {
        /// The image directory.
        dir: PathBuf,
        /// Memory of a block: a multiple of 4K, at most 4M. 4K compresses page by page.
        #[arg(long, value_name = "SIZE", default_value = "256K", value_parser = block)]
        block: u64,
        /// 1 compresses best, up to 65537 is faster.
        #[arg(long, value_name = "N", default_value_t = 1)]
        acceleration: i32,
        #[command(flatten)]
        conversion: ConversionArgs,
    },
    /// Undo the compression of an image directory in place.
    Decompress {
        /// The image directory.
        dir: PathBuf,
        #[command(flatten)]
        conversion: ConversionArgs,
    },
    /// Remove unneeded objects from the platform's store; the platform also does so automatically.
    #[command(after_help = "\
Examples:
  fn snapshot gc --dry-run    say what would be removed
  fn snapshot gc              remove it

A deploy under way loses nothing: what it relies on is kept.")]
    Gc {
        /// Remove nothing, only print what would be removed.
        #[arg(long)]
        dry_run: bool,
        /// Make the store this platform's although it belongs to another, whose functions are lost with it.
        #[arg(long)]
        take_over: bool,
        #[command(flatten)]
        listing: Listing,
    },
    /// Renew the snapshot of a function's live version, in the background, while the old one serves.
    #[command(after_help = "\
Example:
  fn snapshot renew greet     `fn describe greet` shows how far it is

The platform does so by itself after an upgrade that outdates snapshots. The version stays the same, and so
do instances that run.")]
    Renew {
        /// The function.
        name: FunctionArg,
        #[command(flatten)]
        listing: Listing,
    },
    /// Remove an imported snapshot.
    #[command(visible_alias = "rm")]
    Delete {
        /// The snapshot.
        id: SnapshotId,
        /// Remove it although a function uses it: its instances are booted from then on.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        store: StoreArgs,
    },
}

/// How an image directory is converted.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct ConversionArgs {
    /// Keep no `.bak` of the files that are replaced.
    #[arg(long)]
    pub(crate) in_place: bool,
    #[command(flatten)]
    pub(crate) listing: Listing,
}

/// Parses `64K`, `1M` or bytes.
fn block(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" => 1,
        "K" | "KB" | "KIB" => 1 << 10,
        "M" | "MB" | "MIB" => 1 << 20,
        _ => return Err(format!("\"{text}\" is no size: write 64K or 1M")),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| format!("\"{text}\" is no size: write 64K or 1M"))?;
    number
        .checked_mul(unit)
        .ok_or_else(|| format!("\"{text}\" is too large"))
}

/// The store: that of the platform with this run directory, unless one is named.
#[derive(Debug, Clone, Args)]
pub(crate) struct StoreArgs {
    #[command(flatten)]
    pub(crate) places: PlatformDirs,
    #[command(flatten)]
    pub(crate) s3: S3Args,
}

//! Options of `fn audit`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use rekindle_wire::Namespace;
use rekindle_wire::function_config::parse_duration;

/// `fn audit`.
#[derive(Debug, Clone, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  fn audit --since 1d
  fn audit --follow
  fn audit --export jsonl > audit.jsonl
  fn audit verify
  fn audit verify --head 812:5d41…           that this entry is in it, as it was noted elsewhere
  fn audit verify --file audit.jsonl"
)]
pub(crate) struct AuditArgs {
    #[command(subcommand)]
    pub(crate) command: Option<AuditCommand>,
    /// Go on with what happens next.
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Only entries of this last time, such as 1d.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) since: Option<Duration>,
    /// Only entries about this namespace. Admins of several namespaces name one.
    #[arg(long, value_name = "NAMESPACE")]
    pub(crate) of: Option<Namespace>,
    /// Print entries whole, for programs and to be kept elsewhere.
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) export: Option<ExportFormat>,
}

/// The commands of `fn audit`.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum AuditCommand {
    /// Check that no entry was altered, removed or added in between.
    Verify(VerifyArgs),
}

/// `fn audit verify`.
#[derive(Debug, Clone, Args)]
pub(crate) struct VerifyArgs {
    /// Check an exported file instead of the platform's log.
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// The number and hash of an entry, as `fn audit verify` printed them, which must be in it.
    #[arg(long, value_name = "NUMBER:HASH", value_parser = head)]
    pub(crate) head: Option<(u64, String)>,
}

/// Parses `NUMBER:HASH`.
fn head(text: &str) -> Result<(u64, String), String> {
    let parsed = text.split_once(':').and_then(|(number, hash)| {
        let is_hash = hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit());
        Some((number.parse().ok()?, hash.to_ascii_lowercase())).filter(|_| is_hash)
    });
    parsed.ok_or_else(|| format!("\"{text}\" is no entry: write NUMBER:HASH, as `fn audit verify` prints it"))
}

/// How entries are exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// One JSON object a line.
    Jsonl,
}

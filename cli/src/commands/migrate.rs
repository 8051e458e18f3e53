//! `fn migrate`.

use std::process::ExitCode;

use anyhow::{Result, bail};
use rekindle_wire::api::{MigrateRequest, RestoredBy};

use crate::args::MigrateArgs;
use crate::client::Client;
use crate::show;

/// Longest wait for invocations to end, seconds.
const SETTLE_MAX: f64 = 300.0;

/// Moves an instance, and prints how long that took.
pub(crate) async fn run(client: &Client, args: &MigrateArgs) -> Result<ExitCode> {
    if !(0.0..=SETTLE_MAX).contains(&args.settle) {
        bail!("--settle is {} s: use 0 to {SETTLE_MAX}", args.settle);
    }
    let request = MigrateRequest {
        to: args.to.clone(),
        clone: args.clone,
        settle_ms: Some((args.settle * 1e3) as u64),
    };
    let moved = client.migrate(&args.instance, &request).await?;
    if args.json {
        show::print_json(&moved)?;
        return Ok(ExitCode::SUCCESS);
    }
    let times = &moved.phases;
    match args.clone {
        false => say!("{} moved from {} to {}", moved.instance, moved.from, moved.to),
        true => say!("{} is a copy of {}, on {}", moved.instance, args.instance, moved.to),
    }
    say!(
        "  pause    {} (settle {}, checkpoint {}, restore {}, resume {})",
        show::millis(times.pause_ms),
        show::millis(times.settle_ms),
        show::millis(times.checkpoint_ms),
        show::millis(times.restore_ms),
        show::millis(times.resume_ms),
    );
    say!(
        "  memory   {} written since it was restored, {} of images; {} in all",
        show::bytes(times.written_pages * 4096),
        show::bytes(times.image_bytes),
        show::millis(moved.took_ms),
    );
    match &times.restored_by {
        Some(RestoredBy::Program) => say!("  restored by a restore program"),
        Some(RestoredBy::Criu { because }) => say!("  restored by CRIU: {because}"),
        None => {}
    }
    Ok(ExitCode::SUCCESS)
}

//! `fn stats`.

use std::process::ExitCode;

use anyhow::Result;
use rekindle_wire::api::SnapshotSummary;
use rekindle_wire::stats::{FunctionStats, StartStats};

use crate::args::DescribeArgs;
use crate::client::Client;
use crate::show::{self, Tone};

/// Prints the statistics of one function.
pub(crate) async fn run(client: &Client, args: &DescribeArgs) -> Result<ExitCode> {
    let stats = client.function_stats(&client.function_id(&args.name)).await?;
    if args.listing.json {
        show::print_json(&stats)?;
        return Ok(ExitCode::SUCCESS);
    }
    let memory = stats.instances.iter().map(|i| i.memory_bytes).sum();
    let in_flight: u32 = stats.instances.iter().map(|i| i.in_flight).sum();
    let evicted = match stats.instances.iter().map(|i| i.evicted_bytes).sum() {
        0 => String::new(),
        bytes => format!(" (and {} evicted)", show::bytes(bytes)),
    };
    say!(
        "{}: {} with {}{evicted}, {in_flight} in flight, {} waiting",
        stats.name,
        show::count(stats.instances.len(), "instance"),
        show::bytes(memory),
        stats.waiting
    );
    match &stats.snapshot {
        Some(snapshot) => say!("snapshot {}: {}", snapshot.id, stored(snapshot)),
        None => say!("no snapshot: each start boots"),
    }
    say!();
    let total = stats.total();
    if total.invocations() == 0 && total.failed() == 0 {
        say!("no invocations yet");
        return Ok(ExitCode::SUCCESS);
    }
    table(&stats, &total);
    if total.failed() > 0 {
        let one = |(code, count): (&String, &u64)| format!("{code} {count}");
        let all: Vec<String> = total.errors.iter().map(one).collect();
        say!("\n{} {}", show::tinted("failed:", Tone::Bad), all.join(", "));
    }
    Ok(ExitCode::SUCCESS)
}

fn table(stats: &FunctionStats, total: &StartStats) {
    let mut table = show::table(["START", "INVOCATIONS", "FAILED", "P50", "P90", "P99"]);
    let ms = |ms: Option<f64>| ms.map_or_else(|| "-".to_owned(), show::millis);
    let rows = stats.starts.iter().map(|(start, stats)| (start.as_str(), stats));
    for (start, s) in rows.chain([("all", total)]) {
        table.add_row([
            start.to_owned(),
            s.invocations().to_string(),
            s.failed().to_string(),
            ms(s.p50_ms),
            ms(s.p90_ms),
            ms(s.p99_ms),
        ]);
    }
    show::print_table(&table);
}

/// A snapshot's content and its size in the store.
fn stored(snapshot: &SnapshotSummary) -> String {
    let own = snapshot.stored_bytes.saturating_sub(snapshot.shared_bytes);
    let share = |part: u64, whole: u64| part as f64 * 100.0 / whole.max(1) as f64;
    format!(
        "{} of memory ({:.0} % zero) stored in {} ({:.0} %), {} of it shared with others, {} its own",
        show::bytes(snapshot.memory_bytes),
        share(snapshot.zero_bytes, snapshot.memory_bytes),
        show::bytes(snapshot.stored_bytes),
        share(snapshot.stored_bytes, snapshot.memory_bytes),
        show::bytes(snapshot.shared_bytes),
        show::bytes(own),
    )
}

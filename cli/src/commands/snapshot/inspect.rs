//! `fn snapshot inspect`.

use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context as _, Result, anyhow};
use rekindle_snapshotter::inspect;
use rekindle_snapshotter::inspect::{DirectoryInspection, Inspection, ProcessView, draw, inspect_directory};
use rekindle_wire::SnapshotId;
use rekindle_worker::snapshots::show_program;

use crate::args::{Listing, StoreArgs};
use crate::show;
use crate::terminal::harmless;

/// Number of others that are named before the rest is summed up.
const OTHERS_SHOWN: usize = 8;

/// Shows a snapshot by its id, otherwise the image directory of that name. Draws its memory into `svg`.
pub(super) async fn run(what: &str, svg: Option<&Path>, listing: Listing, store: &StoreArgs) -> Result<ExitCode> {
    let dir = Path::new(what);
    // A directory named like an id is one that was exported to it.
    if let Ok(id) = what.parse::<SnapshotId>()
        && !dir.is_dir()
    {
        let found = Box::pin(inspect::inspect(&super::open(store).await?, &id)).await?;
        picture(svg, &format!("{id}: {}", found.origin), &found.processes)?;
        if listing.json {
            show::print_json(&found)?;
        } else {
            print(&found);
        }
        return Ok(ExitCode::SUCCESS);
    }
    if !dir.is_dir() {
        return Err(anyhow!(
            "{what}: neither a snapshot's id (see `fn snapshot list`) nor a directory"
        ));
    }
    let found = inspect_directory(dir)?;
    picture(svg, what, &found.processes)?;
    if listing.json {
        show::print_json(&found)?;
    } else {
        print_directory(&found);
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the program that this host would restore a snapshot by.
pub(super) async fn program(what: &str, store: &StoreArgs) -> Result<ExitCode> {
    let id: SnapshotId = what
        .parse()
        .map_err(|_| anyhow!("{what}: not a snapshot's id (see `fn snapshot list`)"))?;
    let scratch = std::env::temp_dir().join(format!("fn-program-{}", std::process::id()));
    let making = || format!("{}: cannot be made", scratch.display());
    // The images have a function's memory.
    fs::DirBuilder::new()
        .mode(0o700)
        .create(&scratch)
        .with_context(making)?;
    let store = super::open(store).await?;
    let shown = Box::pin(show_program(&store, &id, &scratch)).await;
    let removed = fs::remove_dir_all(&scratch).with_context(|| format!("{}: cannot be removed", scratch.display()));
    let text = shown?;
    removed?;
    text.lines().for_each(|line| say!("{line}"));
    Ok(ExitCode::SUCCESS)
}

fn picture(svg: Option<&Path>, title: &str, processes: &[ProcessView]) -> Result<()> {
    let Some(path) = svg else { return Ok(()) };
    fs::write(path, draw(title, processes)).with_context(|| format!("{}: cannot be written", path.display()))
}

fn print(found: &Inspection) {
    let line = |name: &str, text: String| say!("{name:<13}{}", harmless(&text, &[]));
    let made = UNIX_EPOCH + Duration::from_secs(u64::try_from(found.created_unix_s).unwrap_or(0));
    line("snapshot", found.summary.id.to_string());
    line("of", found.origin.to_string());
    let by = if found.criu.is_empty() {
        String::new()
    } else {
        format!(" by CRIU {}", found.criu)
    };
    line(
        "made",
        format!(
            "{} on Linux {}{by}",
            humantime::format_rfc3339_seconds(made),
            found.kernel
        ),
    );
    let s = &found.summary;
    line(
        "memory",
        format!(
            "{}: {} zero, {} eager, the rest in {} as {} (ratio {:.1}, bundle included)",
            show::bytes(s.memory_bytes),
            show::bytes(s.zero_bytes),
            show::bytes(found.eager_bytes),
            show::count(found.chunks, "chunk"),
            show::bytes(s.stored_bytes),
            found.ratio
        ),
    );
    let r = &found.regions;
    line(
        "regions",
        format!(
            "{} zero, {} raw, {} compressed, {} as a difference",
            r.zero, r.raw, r.compressed, r.difference
        ),
    );
    if let Some(base) = &found.base {
        line(
            "base",
            format!("{base}: what the differences are to; its chunks are kept with this one's"),
        );
    }
    line(
        "bundle",
        format!("{}: images, page maps, eager pages", show::bytes(found.bundle_bytes)),
    );
    line("frozen", show::millis(s.frozen_ms));
    let working_set = match &found.working_set {
        None => "none yet: the first restores record it".to_owned(),
        Some(w) => {
            let bytes = w.pages as u64 * 4096;
            let share = 100.0 * bytes as f64 / s.memory_bytes.max(1) as f64;
            format!(
                "{} ({}, {share:.1} % of memory, {} of them zero) of {}, stored as {}",
                show::count(w.pages, "page"),
                show::bytes(bytes),
                w.zero_pages,
                show::count(w.restores as usize, "restore"),
                show::bytes(w.stored_bytes)
            )
        }
    };
    line("working set", working_set);
    if found.shared_with.is_empty() {
        line("shared", "with no other snapshot".to_owned());
    }
    for other in found.shared_with.iter().take(OTHERS_SHOWN) {
        let share = 100.0 * other.bytes as f64 / s.stored_bytes.max(1) as f64;
        line(
            "shared",
            format!(
                "{} ({share:.0} % of what is stored) with {}",
                show::bytes(other.bytes),
                other.id
            ),
        );
    }
    if let Some(more) = found.shared_with.len().checked_sub(OTHERS_SHOWN).filter(|n| *n > 0) {
        line("", format!("and with {more} more"));
    }
    print_processes(&found.processes);
}

fn print_directory(found: &DirectoryInspection) {
    let form = match (found.compressed, found.block_bytes) {
        (false, _) => "plain".to_owned(),
        (true, Some(bytes)) => format!("compressed by CRIU 4.3, blocks of {}", show::bytes(u64::from(bytes))),
        (true, None) => "compressed by CRIU 4.3".to_owned(),
    };
    let parent = if found.has_parent { ", with a parent" } else { "" };
    say!("{:<13}{form}{parent}", "images");
    say!(
        "{:<13}{}",
        "memory",
        show::bytes(found.kinds.total() + found.shared_memory_bytes)
    );
    say!("{:<13}{}", "pages images", show::bytes(found.stored_bytes));
    if found.shared_memory_bytes > 0 {
        say!("{:<13}{}", "shared memory", show::bytes(found.shared_memory_bytes));
    }
    print_processes(&found.processes);
}

/// Mappings with memory in the snapshot, one a line.
fn print_processes(processes: &[ProcessView]) {
    let size = |n: u64| if n == 0 { "-".to_owned() } else { show::bytes(n) };
    for process in processes {
        let (full, empty): (Vec<_>, Vec<_>) = process.mappings.iter().partition(|m| m.kinds.total() > 0);
        say!();
        say!(
            "process {}, {} without memory of their own",
            process.pid,
            show::count(empty.len(), "mapping")
        );
        let mut table = show::table([
            "ADDRESS",
            "ACCESS",
            "SIZE",
            "ZERO",
            "RAW",
            "COMPRESSED",
            "DIFFERENCE",
            "EAGER",
            "PARENT",
            "STORED",
            "WORKING SET",
            "WHAT",
        ]);
        for m in full {
            table.add_row([
                format!("{:#x}", m.start),
                m.access.clone(),
                show::bytes(m.end - m.start),
                size(m.kinds.zero_bytes),
                size(m.kinds.raw_bytes),
                size(m.kinds.compressed_bytes),
                size(m.kinds.difference_bytes),
                size(m.kinds.eager_bytes),
                size(m.kinds.parent_bytes),
                size(m.stored_bytes),
                size(m.working_set_bytes),
                harmless(&m.name, &[]),
            ]);
        }
        show::print_table(&table);
    }
}

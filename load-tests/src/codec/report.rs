//! The tables, and the bar: at one block size no larger than liblz4 as CRIU uses it, and faster.

use comfy_table::Table;

use super::{Record, Row};
use crate::report::{mib, table};

pub(super) fn print(record: &Record) {
    println!("\n{}", record.taken);
    if !record.rows.is_empty() {
        println!(
            "{} MiB of each pattern, acceleration {}, median of {}: ours (published to an S3 server and read back) beside liblz4 as CRIU 4.3 \
             uses it (one thread, to a file and back)",
            record.mib, record.acceleration, record.rounds
        );
        println!("{}", sizes(record));
        println!("{}", times(record));
        for (pattern, seconds) in &record.copies {
            println!("plain copy of {}: {seconds:.2} s", pattern.name());
        }
        for line in bars(&record.rows) {
            println!("{line}");
        }
    }
    if !record.processes.is_empty() {
        println!(
            "\nA real process, a fifth of each pattern, through the platform, ms\n{}",
            processes(record)
        );
    }
}

fn sizes(record: &Record) -> Table {
    let mut table = table(
        &[
            "pattern",
            "region",
            "payloads MiB",
            "all MiB",
            "liblz4 MiB",
            "all / liblz4",
            "ratio",
            "SHA-256",
        ],
        2,
    );
    for row in &record.rows {
        let (ours, peer) = (&row.ours, &row.peer);
        table.add_row([
            row.pattern.name().to_owned(),
            row.region.clone(),
            format!("{:.2}", mib(ours.payload_bytes)),
            format!("{:.2}", mib(ours.stored_bytes)),
            format!("{:.2}", mib(peer.stored_bytes)),
            format!("{:.3}", ours.stored_bytes as f64 / peer.stored_bytes.max(1) as f64),
            format!("{:.2}", row.memory_bytes as f64 / ours.stored_bytes.max(1) as f64),
            if row.sha256_before == row.sha256_after {
                "same".to_owned()
            } else {
                "CHANGED".to_owned()
            },
        ]);
    }
    table
}

fn times(record: &Record) -> Table {
    let mut table = table(
        &[
            "pattern",
            "region",
            "capture s",
            "liblz4 s",
            "ours / liblz4",
            "restore s",
            "from cache s",
            "liblz4 s",
            "cache / liblz4",
        ],
        2,
    );
    for row in &record.rows {
        let (ours, peer) = (&row.ours, &row.peer);
        table.add_row([
            row.pattern.name().to_owned(),
            row.region.clone(),
            format!("{:.2}", ours.capture_s),
            format!("{:.2}", peer.capture_s),
            format!("{:.2}", ours.capture_s / peer.capture_s),
            format!("{:.2}", ours.restore_s),
            format!("{:.2}", ours.restore_cached_s),
            format!("{:.2}", peer.restore_s),
            format!("{:.2}", ours.restore_cached_s / peer.restore_s),
        ]);
    }
    table
}

fn bars(rows: &[Row]) -> Vec<String> {
    let name = |row: &Row| format!("{} {}", row.pattern.name(), row.region);
    let told = |bar: &str, missed: Vec<String>| {
        let verdict = if missed.is_empty() {
            "met".to_owned()
        } else {
            format!("missed by {}", missed.join(", "))
        };
        format!("bar: {bar}: {verdict}")
    };
    // Of nothing but zeros both store next to nothing.
    let larger = rows
        .iter()
        .filter(|r| r.ours.stored_bytes > r.peer.stored_bytes.max(r.memory_bytes / 1000));
    let ours = |r: &&Row| r.ours.capture_s + r.ours.restore_cached_s;
    let slower = rows.iter().filter(|r| ours(r) > r.peer.capture_s + r.peer.restore_s);
    vec![
        told(
            "no larger than liblz4 at the same block size",
            larger.map(name).collect(),
        ),
        told(
            "capture and restore together faster than liblz4's",
            slower.map(name).collect(),
        ),
    ]
}

fn processes(record: &Record) -> Table {
    let mut table = table(
        &[
            "region",
            "memory MiB",
            "stored MiB",
            "frozen",
            "first response p50",
            "max",
            "all of it",
            "SHA-256",
        ],
        1,
    );
    for row in &record.processes {
        table.add_row([
            row.region.clone(),
            format!("{:.1}", mib(row.memory_bytes)),
            format!("{:.1}", mib(row.stored_bytes)),
            format!("{:.0}", row.frozen_ms),
            format!("{:.1}", row.first_p50_ms),
            format!("{:.1}", row.first_max_ms),
            format!("{:.0}", row.all_ms),
            if row.sha256_before == row.sha256_after {
                "same".to_owned()
            } else {
                "CHANGED".to_owned()
            },
        ]);
    }
    table
}

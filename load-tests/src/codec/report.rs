//! The tables, and the target: at one block size no larger than liblz4 as CRIU uses it, and faster.

use comfy_table::Table;

use super::{Record, Row};
use crate::report::{mib, table};

pub(super) fn print(record: &Record) {
    println!("\n{}", record.taken);
    if !record.rows.is_empty() {
        println!(
            "{} MiB of each pattern, acceleration {}, median of {}: ours (published to an S3 server and read back) beside liblz4 as CRIU 4.3 \
             uses it (one thread, to a file and back, and by way of the same server)",
            record.mib, record.acceleration, record.rounds
        );
        println!("{}", sizes(record));
        println!("{}", captures(record));
        println!("{}", restores(record));
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

/// A table of the times of each row, ours and the peer's, the last two of each with their ratio.
fn times(record: &Record, columns: &[&str], cells: impl Fn(&Row) -> Vec<f64>) -> Table {
    let mut table = table(&[&["pattern", "region"], columns].concat(), 2);
    for row in &record.rows {
        let names = [row.pattern.name().to_owned(), row.region.clone()];
        table.add_row(
            names
                .into_iter()
                .chain(cells(row).iter().map(|cell| format!("{cell:.2}"))),
        );
    }
    table
}

fn captures(record: &Record) -> Table {
    let columns = [
        "capture s",
        "CPU s",
        "liblz4, to the store s",
        "CPU s",
        "ours / it",
        "liblz4, to a file s",
        "ours / it",
    ];
    times(record, &columns, |row| {
        let (ours, peer) = (&row.ours, &row.peer);
        vec![
            ours.capture_s,
            ours.cpu_s[0],
            peer.shipped_s,
            peer.cpu_s[2],
            ours.capture_s / peer.shipped_s,
            peer.capture_s,
            ours.capture_s / peer.capture_s,
        ]
    })
}

fn restores(record: &Record) -> Table {
    let columns = [
        "from the store s",
        "CPU s",
        "liblz4, from the store s",
        "CPU s",
        "ours / it",
        "from the cache s",
        "CPU s",
        "liblz4, from a file s",
        "ours / it",
    ];
    times(record, &columns, |row| {
        let (ours, peer) = (&row.ours, &row.peer);
        vec![
            ours.restore_s,
            ours.cpu_s[1],
            peer.fetched_s,
            peer.cpu_s[3],
            ours.restore_s / peer.fetched_s,
            ours.restore_cached_s,
            ours.cpu_s[2],
            peer.restore_s,
            ours.restore_cached_s / peer.restore_s,
        ]
    })
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
    // For pure zeros both store next to nothing.
    let larger = rows
        .iter()
        .filter(|r| r.ours.stored_bytes > r.peer.stored_bytes.max(r.memory_bytes / 1000));
    let slower = rows.iter().filter(|r| {
        let ours = r.ours.capture_s + r.ours.restore_s;
        ours > r.peer.shipped_s + r.peer.fetched_s
    });
    let slower_than_a_file = rows.iter().filter(|r| {
        let ours = r.ours.capture_s + r.ours.restore_cached_s;
        ours > r.peer.capture_s + r.peer.restore_s
    });
    vec![
        told(
            "no larger than liblz4 at the same block size",
            larger.map(name).collect(),
        ),
        told(
            "capture to the store and restore from it together faster than liblz4's by the same store",
            slower.map(name).collect(),
        ),
        told(
            "capture, and restore from the cache, together faster than liblz4's to a file and back, which hashes, sends and shares nothing",
            slower_than_a_file.map(name).collect(),
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

//! The tables of `rekindle-bench migration`.

use comfy_table::Table;

use super::{Case, Move, Record};
use crate::report::table;
use crate::stats::figures;

pub(super) fn print(record: &Record) {
    println!("\n{}", record.taken);
    println!(
        "\nThe pause of a move, ms (medians; the pause also its longest):\n\n{}",
        pauses(record, |c| &c.moves)
    );
    println!(
        "\nUnder constant load by {} clients:\n\n{}",
        super::LOAD,
        pauses(record, |c| &c.loaded)
    );
    println!(
        "\nCopies under the same load, the original going on:\n\n{}",
        pauses(record, |c| &c.copies)
    );
    println!("\nThe whole, medians:\n\n{}", whole(record));
    for case in &record.cases {
        for why in &case.failed {
            println!("failed, {}: {why}", title(case));
        }
    }
}

fn title(case: &Case) -> String {
    format!(
        "{} MiB, {}",
        case.mib,
        if case.written { "all written" } else { "mostly clean" }
    )
}

fn median(moves: &[Move], of: impl Fn(&Move) -> f64) -> String {
    shown(figures(moves.iter().map(of)).map(|f| f.p50))
}

fn longest(moves: &[Move], of: impl Fn(&Move) -> f64) -> String {
    shown(moves.iter().map(of).reduce(f64::max))
}

fn shown(ms: Option<f64>) -> String {
    ms.map_or_else(|| "–".to_owned(), |ms| format!("{ms:.1}"))
}

fn pauses(record: &Record, of: fn(&Case) -> &Vec<Move>) -> Table {
    let header = [
        "instance",
        "settle",
        "checkpoint",
        "restore",
        "resume",
        "pause",
        "longest",
        "a client's longest answer",
        "the worst",
    ];
    let mut table = table(&header, 1);
    for case in &record.cases {
        let moves = of(case);
        table.add_row([
            title(case),
            median(moves, |m| m.settle),
            median(moves, |m| m.checkpoint),
            median(moves, |m| m.restore),
            median(moves, |m| m.resume),
            median(moves, |m| m.pause),
            longest(moves, |m| m.pause),
            median(moves, |m| m.client),
            longest(moves, |m| m.client),
        ]);
    }
    table
}

fn whole(record: &Record) -> Table {
    let header = [
        "instance",
        "written, MiB",
        "images, KiB",
        "with getting ready, ms",
        "a copy, ms",
        "there and back, ms",
        "memory behind, ms",
        "requests under load",
        "failed",
    ];
    let mut table = table(&header, 1);
    for case in &record.cases {
        table.add_row([
            title(case),
            median(&case.moves, |m| m.written_mib),
            median(&case.moves, |m| m.images_kib),
            median(&case.moves, |m| m.whole),
            median(&case.copies, |m| m.whole),
            shown(figures(case.round_trips_ms.iter().copied()).map(|f| f.p50)),
            median(&case.moves, |m| m.behind),
            case.requests.to_string(),
            case.failed.len().to_string(),
        ]);
    }
    table
}

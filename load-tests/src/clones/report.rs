//! The tables of `rekindle-bench clones`.

use comfy_table::Table;

use super::memory::Held;
use super::{Clones, RECORDED, Record};
use crate::report::{mib, table};

pub(super) fn print(record: &Record) {
    println!("\n{}", record.taken);
    println!(
        "\nPage faults until the first response, restore by restore\n{}",
        faults(record)
    );
    println!(
        "\nMemory of a clone that has answered once, MiB, medians; the template is on the host once\n{}",
        memory(record)
    );
    println!(
        "\nA parked instance, MiB, medians; how many fit in 1 GiB beside their one template, and without counting it\n{}",
        parked(record)
    );
}

fn faults(record: &Record) -> Table {
    let mut table = table(
        &["sample", "in its snapshot", "1st", "2nd", "3rd", "with its working set"],
        1,
    );
    for sample in &record.samples {
        let mut row = vec![sample.name.clone(), format!("{:.1} MiB", mib(sample.memory_bytes))];
        row.extend(sample.faults[..RECORDED].iter().map(u64::to_string));
        let after = &sample.faults[RECORDED..];
        row.push(after.iter().map(u64::to_string).collect::<Vec<_>>().join(", "));
        table.add_row(row);
    }
    table
}

fn median(clones: &Clones, of: fn(&Held) -> u64) -> u64 {
    let mut all: Vec<u64> = clones.each.iter().map(of).collect();
    all.sort_unstable();
    all[all.len() / 2]
}

fn parked(record: &Record) -> Table {
    let header = [
        "sample",
        "parked",
        "private",
        "PSS",
        "charged",
        "of it the kernel's",
        "template",
        "in 1 GiB",
        "without the template",
    ];
    let mut table = table(&header, 2);
    for sample in &record.samples {
        for (how, clones) in [("after a request", &sample.parked), ("ahead", &sample.ahead)] {
            let shown = |of: fn(&Held) -> u64| format!("{:.1}", mib(median(clones, of)));
            let charged = median(clones, |h| h.charged).max(1);
            let fit = |room: u64| (room / charged).to_string();
            table.add_row([
                sample.name.clone(),
                how.to_owned(),
                shown(|h| h.private),
                shown(|h| h.proportional),
                shown(|h| h.charged),
                shown(|h| h.kernel),
                format!("{:.1}", mib(clones.template_bytes)),
                fit((1_u64 << 30).saturating_sub(clones.template_bytes)),
                fit(1_u64 << 30),
            ]);
        }
    }
    table
}

fn memory(record: &Record) -> Table {
    let mut table = table(
        &[
            "sample", "clones", "resident", "shared", "private", "PSS", "charged", "template",
        ],
        1,
    );
    for sample in &record.samples {
        for clones in &sample.clones {
            let median = |of: fn(&Held) -> u64| format!("{:.1}", mib(median(clones, of)));
            table.add_row([
                sample.name.clone(),
                clones.count.to_string(),
                median(|h| h.resident),
                median(|h| h.resident - h.private),
                median(|h| h.private),
                median(|h| h.proportional),
                median(|h| h.charged),
                format!("{:.1}", mib(clones.template_bytes)),
            ]);
        }
    }
    table
}

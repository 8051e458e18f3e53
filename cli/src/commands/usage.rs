//! `fn usage`.

use std::process::ExitCode;

use anyhow::{Result, bail};
use rekindle_wire::api::{GbMs, USAGE_DAYS_MAX, UsageLine};

use crate::args::UsageArgs;
use crate::client::Client;
use crate::show;

const DAY_S: u64 = 86_400;

/// Shows what the functions of a namespace have used.
pub(crate) async fn run(client: &Client, args: &UsageArgs) -> Result<ExitCode> {
    let days = u32::try_from(args.since.as_secs().div_ceil(DAY_S)).unwrap_or(u32::MAX);
    if !(1..=USAGE_DAYS_MAX).contains(&days) {
        bail!("usage is kept for {USAGE_DAYS_MAX} days: use --since 1d to {USAGE_DAYS_MAX}d");
    }
    let lines = client.usage(args.name.as_ref(), days, args.by).await?;
    if args.listing.json {
        show::print_json(&lines)?;
    } else if args.csv {
        print_csv(&lines);
    } else if lines.is_empty() {
        say!("nothing was used");
    } else {
        print(&lines);
    }
    Ok(ExitCode::SUCCESS)
}

fn parts(line: &UsageLine) -> [String; 3] {
    let text = |part: Option<&dyn ToString>| part.map_or_else(String::new, |part| part.to_string());
    [
        line.day.clone().unwrap_or_default(),
        text(line.function.as_ref().map(|name| name as &dyn ToString)),
        text(line.version.as_ref().map(|version| version as &dyn ToString)),
    ]
}

fn print(lines: &[UsageLine]) {
    let mut table = show::table([
        "DAY",
        "FUNCTION",
        "VERSION",
        "OK",
        "ERRORS",
        "GB-S",
        "WARM",
        "PARKED",
        "RESTORED",
        "BOOTED",
        "EGRESS",
        "STORED GIB-H",
    ]);
    let mut total = UsageLine::default();
    for line in lines {
        add(&mut total, line);
        table.add_row(row(parts(line), line));
    }
    if lines.len() > 1 {
        table.add_row(row(["all".to_owned(), String::new(), String::new()], &total));
    }
    show::print_table(&table);
}

fn row([day, function, version]: [String; 3], line: &UsageLine) -> [String; 12] {
    let seconds = |gb_ms: f64| format!("{:.3}", gb_ms / 1e3);
    let GbMs {
        warm,
        parked,
        restored,
        booted,
    } = line.gb_ms;
    [
        day,
        function,
        version,
        line.ok.to_string(),
        line.errors.to_string(),
        seconds(line.gb_ms.total()),
        seconds(warm),
        seconds(parked),
        seconds(restored),
        seconds(booted),
        show::bytes(line.egress_bytes),
        format!("{:.3}", line.stored_gb_h),
    ]
}

fn add(total: &mut UsageLine, line: &UsageLine) {
    total.ok += line.ok;
    total.errors += line.errors;
    total.gb_ms.warm += line.gb_ms.warm;
    total.gb_ms.parked += line.gb_ms.parked;
    total.gb_ms.restored += line.gb_ms.restored;
    total.gb_ms.booted += line.gb_ms.booted;
    total.egress_bytes += line.egress_bytes;
    total.stored_gb_h += line.stored_gb_h;
}

/// Days, names and numbers: nothing needs quotes.
fn print_csv(lines: &[UsageLine]) {
    say!("day,function,version,ok,errors,gb_ms_warm,gb_ms_parked,gb_ms_restored,gb_ms_booted,egress_bytes,stored_gb_h");
    for line in lines {
        say!("{}", csv(line));
    }
}

fn csv(line: &UsageLine) -> String {
    let GbMs {
        warm,
        parked,
        restored,
        booted,
    } = line.gb_ms;
    let [day, function, version] = parts(line);
    format!(
        "{day},{function},{version},{},{},{warm:.6},{parked:.6},{restored:.6},{booted:.6},{},{:.6}",
        line.ok, line.errors, line.egress_bytes, line.stored_gb_h
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_csv_has_a_field_for_each_column() {
        let line = UsageLine {
            day: Some("2026-11-26".to_owned()),
            function: Some("hello".parse().unwrap()),
            ok: 3,
            gb_ms: GbMs {
                warm: 1.5,
                ..GbMs::default()
            },
            ..UsageLine::default()
        };
        assert_eq!(
            csv(&line),
            "2026-11-26,hello,,3,0,1.500000,0.000000,0.000000,0.000000,0,0.000000"
        );
    }
}

//! `fn doctor --function`: what an instance has from the kernel, and what becomes of it in copies.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{Result, bail};
use rekindle_wire::api::{Fate, FunctionDetail, InstanceInfo, InstanceObjects, KernelObject};

use crate::args::{DoctorArgs, FunctionArg};
use crate::client::Client;
use crate::commands::describe::{NO_SNAPSHOT_WANTED, restorer_line};
use crate::show::{self, Tone};

/// Prints what an instance of the function has. Exit code 1 if something is in the way of a snapshot.
pub(crate) async fn run(client: &Client, function: &FunctionArg, args: &DoctorArgs) -> Result<ExitCode> {
    let detail = client.function(&client.function_id(function)).await?;
    let instance = chosen(&detail, args)?;
    let found = client.instance_objects(&instance.function, &instance.id).await?;
    let refused = found.objects.iter().any(|object| object.fate == Fate::Refused);
    if args.listing.json {
        show::print_json(&found)?;
    } else {
        print(&detail, &found, args.all);
    }
    Ok(if refused { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn chosen<'a>(detail: &'a FunctionDetail, args: &DoctorArgs) -> Result<&'a InstanceInfo> {
    let name = &detail.summary.name;
    match &args.instance {
        None => match detail.instances.first() {
            Some(first) => Ok(first),
            None => bail!("no instance of {name} is running: `fn invoke {name}`, then ask again while it is idle"),
        },
        Some(id) => match detail.instances.iter().find(|instance| instance.id == *id) {
            Some(found) => Ok(found),
            None => bail!("{name} has no instance {id}: `fn describe {name}` lists its instances"),
        },
    }
}

fn print(detail: &FunctionDetail, found: &InstanceObjects, all: bool) {
    let processes = usize::try_from(found.processes).unwrap_or(usize::MAX);
    say!(
        "instance   {}, version {}, {}",
        found.instance,
        found.version,
        match processes {
            1 => "1 process".to_owned(),
            count => format!("{count} processes"),
        }
    );
    if let Some(version) = detail.versions.iter().find(|version| version.version == found.version) {
        match (&version.snapshot, &version.snapshot_error) {
            (_, Some(why)) => say!("snapshot   none: {why}"),
            (Some(snapshot), None) => {
                let rehearsal = snapshot.rehearsal.as_ref();
                let by = rehearsal.and_then(|rehearsal| rehearsal.restored_by.as_ref());
                let by = by.map_or_else(String::new, |by| format!(", restored by {}", restorer_line(by)));
                say!("snapshot   made at the deploy{by}");
            }
            (None, None) => say!("snapshot   none: {NO_SNAPSHOT_WANTED}"),
        }
    }
    say!();
    let (kept, others): (Vec<_>, Vec<_>) = found.objects.iter().partition(|object| object.fate == Fate::Kept);
    let mut table = show::table(["PROCESS", "WHERE", "WHAT", "IN COPIES", "WHAT TO DO"]);
    let listed = others.iter().chain(kept.iter().filter(|_| all));
    for object in listed {
        table.add_row(row(object));
    }
    if !all {
        for ((pid, program), count) in counted(&kept) {
            let what = format!("{count} others");
            table.add_row([
                format!("{pid} {program}"),
                String::new(),
                what,
                word(Fate::Kept),
                String::new(),
            ]);
        }
    }
    show::print_table(&table);
    if found.left_out > 0 {
        say!("\n{} more are left out", found.left_out);
    }
    if !others.iter().any(|object| object.fate == Fate::Refused) {
        say!("\nnothing here is in the way of a snapshot");
    }
    if !all && !kept.is_empty() {
        say!("what is kept is listed by --all");
    }
}

/// The number of objects that are kept, by process.
fn counted<'a>(kept: &[&'a KernelObject]) -> BTreeMap<(u32, &'a str), u64> {
    let mut counts = BTreeMap::new();
    for object in kept {
        *counts.entry((object.pid, object.program.as_str())).or_default() += object.count;
    }
    counts
}

fn row(object: &KernelObject) -> [String; 5] {
    let process = match object.pid {
        0 => String::new(),
        pid => format!("{pid} {}", object.program),
    };
    let what = match object.count {
        1 => object.what.clone(),
        count => format!("{count} {}", object.what),
    };
    let becomes = match object.becomes.as_str() {
        "" => word(object.fate),
        words => format!("{}: {words}", word(object.fate)),
    };
    [
        process,
        object.place.clone(),
        what,
        becomes,
        object.fix.clone().unwrap_or_default(),
    ]
}

fn word(fate: Fate) -> String {
    match fate {
        Fate::Kept => show::tinted("kept", Tone::Good),
        Fate::Changed => show::tinted("changed", Tone::Warning),
        Fate::Refused => show::tinted("REFUSED", Tone::Bad),
    }
}

//! `fn describe`.

use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::Result;
use rekindle_wire::api::{
    Canary, CanaryState, Randomness, Rehearsal, RestoredBy, Reused, SecretSummary, SnapshotSummary, VersionInfo,
    VersionState,
};
use rekindle_wire::function_config::Interface;
use rekindle_wire::renewal::Renewal;
use rekindle_wire::{SecretName, VersionNumber};

use crate::args::DescribeArgs;
use crate::client::Client;
use crate::show;

/// Why a version has no snapshot if nothing was in the way of one.
pub(crate) const NO_SNAPSHOT_WANTED: &str = "fn.toml leaves it out (snapshot = false, or a secret at the boot)";

/// Prints a function with its versions and instances.
pub(crate) async fn run(client: &Client, args: &DescribeArgs) -> Result<ExitCode> {
    let detail = client.function(&client.function_id(&args.name)).await?;
    if args.listing.json {
        show::print_json(&detail)?;
        return Ok(ExitCode::SUCCESS);
    }
    let s = &detail.summary;
    say!("name       {}", s.name);
    say!("url        {}", client.address(&s.path));
    say!("runtime    {}", show::runtime(s.runtime, s.base, s.image.as_deref()));
    say!(
        "live       {}",
        s.live.map_or_else(|| "none".to_owned(), |v| format!("version {v}"))
    );
    // The live version; before any is live, the last one deployed.
    let live = detail.versions.iter().find(|v| Some(v.version) == s.live);
    if let Some(shown) = live.or(detail.versions.first()) {
        let m = &shown.config;
        say!(
            "limits     {} of memory, {} of /tmp, {} CPU, timeout {}",
            show::bytes(m.memory.0),
            show::bytes(m.tmp.0),
            m.cpu,
            show::duration(m.timeout())
        );
        let kept = match m.adaptive {
            true => "as long as its calls call for".to_owned(),
            false => show::duration(m.idle()),
        };
        say!(
            "scaling    {} at once on one of at most {}, each kept {kept} when idle",
            show::count(usize::try_from(m.concurrency).unwrap_or(usize::MAX), "invocation"),
            show::count(usize::try_from(m.max_instances).unwrap_or(usize::MAX), "instance")
        );
        if m.fresh {
            say!("copies     another one for each invocation");
        }
        if m.min_warm > 0 {
            let least = show::count(usize::try_from(m.min_warm).unwrap_or(usize::MAX), "instance");
            say!("ready      {least} at least");
        }
        if m.park_ms > 0 || m.min_parked > 0 {
            say!(
                "parked     {} at least, idle ones for {} more",
                show::count(usize::try_from(m.min_parked).unwrap_or(usize::MAX), "instance"),
                show::duration(m.park())
            );
        }
        if m.interface == Interface::Lambda {
            say!(
                "interface  lambda, {}",
                m.entry.as_deref().unwrap_or("without a handler's name")
            );
        }
        say!("network    {}", m.network.as_str());
        if !m.secrets.is_empty() {
            let known = client.secrets_beside(&s.name).await?;
            say!("secrets    {}", secrets_line(&m.secrets, &known));
        }
        if let Some(reused) = shown.reused {
            say!("reused     {}", reused_line(reused));
        }
        if let Some(snapshot) = &shown.snapshot {
            say!("snapshot   {}", snapshot_line(snapshot));
            for refused in &snapshot.refused_warmups {
                say!("warm-up    refused: {refused}");
            }
            if let Some(rehearsal) = &snapshot.rehearsal {
                say!("rehearsal  {}", rehearsal_line(rehearsal));
                if let Some(by) = &rehearsal.restored_by {
                    say!("restorer   {}", restorer_line(by));
                }
                if let Some(warning) = &rehearsal.warning {
                    say!("rehearsal  the copy: {warning}");
                }
            }
            if let Some(randomness) = &snapshot.randomness {
                say!("random     {}", reseeded_line(randomness));
                for repeating in &randomness.repeating {
                    say!("random     {}: {}", repeating.name, repeating.advice);
                }
            }
        }
        match (&shown.snapshot, &shown.snapshot_error) {
            (_, Some(why)) => say!("snapshot   none: {why}"),
            (None, None) if shown.state == VersionState::Live => say!("snapshot   none: {NO_SNAPSHOT_WANTED}"),
            _ => {}
        }
        if let Some(renewal) = &shown.renewal {
            say!("renewal    {}", renewal_line(renewal));
        }
    }
    for line in detail.canary.iter().flat_map(canary_lines) {
        say!("{line}");
    }
    say!();
    let mut table = show::table(["VERSION", "STATE", "CREATED", "PHASES", "SNAPSHOT"]);
    for v in &detail.versions {
        table.add_row([
            v.version.to_string(),
            state_word(v, s.live),
            when(v.created_unix_s),
            phases_line(v),
            v.snapshot
                .as_ref()
                .map_or_else(|| "-".to_owned(), |s| show::bytes(s.stored_bytes)),
        ]);
    }
    show::print_table(&table);
    // A failure from before a newer version went live is over.
    let newer = |v: &&VersionInfo| s.live.is_none_or(|live| v.version > live);
    let failed = |v: &VersionInfo| Some((v.version, v.error.clone()?));
    if let Some((version, error)) = detail.versions.iter().filter(newer).find_map(failed) {
        say!("\nversion {version} failed: {error}");
    }
    if !detail.instances.is_empty() {
        say!();
        super::print_instances(&detail.instances);
    }
    Ok(ExitCode::SUCCESS)
}

/// The secrets of a version, each with its own version.
fn secrets_line(names: &[SecretName], known: &[SecretSummary]) -> String {
    let one = |name: &SecretName| match known.iter().find(|secret| secret.name == *name) {
        Some(secret) if secret.readable => format!("{name} (version {})", secret.version),
        Some(_) => format!("{name} (sealed with another key)"),
        None => format!("{name} (not set)"),
    };
    let all: Vec<_> = names.iter().map(one).collect();
    all.join(", ")
}

/// A version's state in words: of those that went live, one serves.
fn state_word(version: &VersionInfo, live: Option<VersionNumber>) -> String {
    match version.state {
        VersionState::Live if live != Some(version.version) => "ready".to_owned(),
        state => state.to_string(),
    }
}

/// A point in time, to the second, in UTC.
pub(super) fn when(unix_s: i64) -> String {
    let since = Duration::from_secs(u64::try_from(unix_s).unwrap_or(0));
    humantime::format_rfc3339_seconds(UNIX_EPOCH + since).to_string()
}

/// How a canary does, with the numbers of its last comparison.
fn canary_lines(canary: &Canary) -> Vec<String> {
    let Canary { from, to, step_s, .. } = canary;
    let state = match canary.state {
        CanaryState::Growing => format!(
            "version {to} beside {from}: {}%, step {} of {}, since {}, {step_s} s at least",
            canary.percent(),
            canary.step + 1,
            canary.steps.percents().len(),
            when(canary.since_unix_ms / 1_000)
        ),
        CanaryState::Live => format!("version {to} has taken over from {from}"),
        CanaryState::RolledBack => format!(
            "version {to} was rolled back to {from}: {}",
            canary.why.as_deref().unwrap_or_default()
        ),
        CanaryState::Replaced => format!("version {to} beside {from}: another change of what is live ended it"),
    };
    let checks = canary.checks.iter().map(|check| {
        let what = match check.slow_ms {
            None => "failed".to_owned(),
            Some(ms) => format!("{} over {}", check.what, show::millis(ms)),
        };
        format!(
            "  {what}: {} of {}, of version {from} {} of {}; p {:.2e}, limit {:.2e}",
            check.new.hits, check.new.of, check.old.hits, check.old.of, check.p, check.limit
        )
    });
    std::iter::once(format!("canary     {state}")).chain(checks).collect()
}

/// What a version has of another, on one line.
pub(crate) fn reused_line(reused: Reused) -> String {
    match reused.snapshot {
        true => format!(
            "the snapshot of version {}: nothing was built or booted",
            reused.version
        ),
        false => format!("the files of version {}: booted, and not built", reused.version),
    }
}

/// The phases that a version went through, on one line.
pub(crate) fn phases_line(version: &VersionInfo) -> String {
    let phases: Vec<String> = version
        .phases
        .iter()
        .filter(|p| !p.phase.is_final())
        .map(|p| format!("{} {}", p.phase, show::millis(p.ms)))
        .collect();
    phases.join(" · ")
}

/// Why and when a snapshot is renewed, on one line.
fn renewal_line(r: &Renewal) -> String {
    let Renewal { reason, why, .. } = r;
    let error = r.error.as_deref().unwrap_or_default();
    match (r.given_up, r.attempts) {
        (true, attempts) => {
            format!("{reason}: {why}; given up after {attempts} attempts ({error}): `fn snapshot renew` tries again")
        }
        (false, 0) if error.is_empty() => format!("{reason}: {why}; waits for its turn"),
        (false, attempts) => format!(
            "{reason}: {why}; not before {}, {attempts} failed: {error}",
            when(r.due_unix_s)
        ),
    }
}

/// The generators that every copy has reseeded, on one line.
pub(crate) fn reseeded_line(randomness: &Randomness) -> String {
    let kinds = randomness
        .reseeded
        .iter()
        .map(|(kind, count)| format!("{kind} {count}"));
    match kinds.collect::<Vec<_>>().join(", ") {
        kinds if kinds.is_empty() => "no generator in memory".to_owned(),
        kinds => format!("reseeded in every copy: {kinds}"),
    }
}

/// The result of a snapshot's first restore, on one line.
pub(crate) fn rehearsal_line(r: &Rehearsal) -> String {
    let pages = usize::try_from(r.pages).unwrap_or(usize::MAX);
    format!(
        "restored in {}; working set of {}",
        show::millis(r.restore_ms),
        show::count(pages, "page")
    )
}

/// What restores a snapshot, on one line.
pub(crate) fn restorer_line(by: &RestoredBy) -> String {
    match by {
        RestoredBy::Program => "a restore program".to_owned(),
        RestoredBy::Criu { because } => format!("CRIU: {because}"),
    }
}

pub(crate) fn snapshot_line(s: &SnapshotSummary) -> String {
    format!(
        "{} of memory, {} of it zero; {} stored, {} shared with others; stood still {}",
        show::bytes(s.memory_bytes),
        show::bytes(s.zero_bytes),
        show::bytes(s.stored_bytes),
        show::bytes(s.shared_bytes),
        show::millis(s.frozen_ms)
    )
}

//! `fn audit`: shows the audit log, and checks its chain of hashes here, so that the platform need not be believed.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use rekindle_scheduler::audit_digest;
use rekindle_wire::api::{AuditEntry, AuditPlace};
use rekindle_wire::clock::unix_ms;

use crate::args::{AuditArgs, AuditCommand, VerifyArgs};
use crate::client::Client;

/// Interval at which new entries are asked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Runs a command that needs no platform; `None` for the others.
pub(crate) fn run_here(args: &AuditArgs) -> Option<Result<ExitCode>> {
    match &args.command {
        Some(AuditCommand::Verify(args)) => Some(verify_file(args.file.as_deref()?, args)),
        None => None,
    }
}

/// Shows the log, or checks it.
pub(crate) async fn run(client: &Client, args: &AuditArgs) -> Result<ExitCode> {
    if let Some(AuditCommand::Verify(args)) = &args.command {
        return verify(client, args).await;
    }
    let since = args.since.map(|last| {
        let last = i64::try_from(last.as_millis()).unwrap_or(i64::MAX);
        unix_ms().saturating_sub(last).max(0)
    });
    let mut after = 0;
    loop {
        let page = client.audit(after, since, args.of.as_ref()).await?;
        for entry in &page.entries {
            after = entry.number;
            match args.export {
                Some(_) => say!("{}", serde_json::to_string(entry)?),
                None => say!("{}", line(entry)),
            }
        }
        match (page.entries.is_empty(), args.follow) {
            (false, _) => {}
            (true, true) => tokio::time::sleep(LOOK_EVERY).await,
            (true, false) => return Ok(ExitCode::SUCCESS),
        }
    }
}

fn line(entry: &AuditEntry) -> String {
    let at = Duration::from_millis(u64::try_from(entry.unix_ms).unwrap_or(0));
    let namespace = entry.namespace.as_ref().map_or("*", |n| n.as_str());
    let words = [
        humantime::format_rfc3339_millis(UNIX_EPOCH + at).to_string(),
        entry.actor.clone(),
        entry.action.clone(),
        namespace.to_owned(),
        entry.object.clone(),
        entry.outcome.clone(),
    ];
    words
        .iter()
        .filter(|word| !word.is_empty())
        .cloned()
        .collect::<Vec<_>>()
        .join("  ")
}

/// Follows the chain from one entry to the next.
struct Chain {
    last: Option<AuditPlace>,
    first: u64,
    count: u64,
    /// The entry that must be in it, until it is found.
    wanted: Option<(u64, String)>,
}

impl Chain {
    fn new(begins_after: Option<AuditPlace>, wanted: Option<(u64, String)>) -> Self {
        let mut chain = Self {
            first: begins_after.as_ref().map_or(0, |place| place.number + 1),
            last: None,
            count: 0,
            wanted,
        };
        if let Some(place) = begins_after {
            chain.pass(place);
        }
        chain
    }

    fn pass(&mut self, place: AuditPlace) {
        let is_here = |(number, hash): &(u64, String)| *number == place.number && *hash == place.hash;
        self.wanted.take_if(|wanted| is_here(wanted));
        self.last = Some(place);
    }

    fn follow(&mut self, entry: &AuditEntry) -> Result<()> {
        let number = entry.number;
        match &self.last {
            Some(last) if last.number + 1 != number => {
                bail!("the log was altered: entry {number} follows entry {}", last.number)
            }
            Some(last) if last.hash != entry.previous => {
                bail!(
                    "the log was altered: entry {number} does not have the hash of entry {}",
                    last.number
                )
            }
            Some(_) => {}
            None => self.first = number,
        }
        if audit_digest(entry) != entry.hash {
            bail!("the log was altered: entry {number} is not what its hash says");
        }
        self.count += 1;
        self.pass(AuditPlace {
            number,
            hash: entry.hash.clone(),
        });
        Ok(())
    }

    fn end(self) -> Result<ExitCode> {
        if let Some((number, hash)) = self.wanted {
            bail!("the log was altered: entry {number} with the hash {hash} is not in it, or is too old to be kept");
        }
        match self.last {
            Some(last) if self.count > 0 => {
                say!("{} entries from {} on are as they were written", self.count, self.first);
                say!("  last  {}:{}", last.number, last.hash);
            }
            _ => say!("there are no entries"),
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn verify(client: &Client, args: &VerifyArgs) -> Result<ExitCode> {
    let mut page = client.audit(0, None, None).await?;
    let after = page.begins_after.number;
    let mut chain = Chain::new(Some(page.begins_after), args.head.clone());
    let mut last = after;
    while !page.entries.is_empty() {
        for entry in &page.entries {
            if entry.namespace.is_none() || entry.number == last + 1 {
                last = entry.number;
                chain.follow(entry)?;
                continue;
            }
            bail!(
                "entry {} follows entry {last}: a key for one namespace reads a part of the log, which cannot be \
                 checked; or the log was altered",
                entry.number
            );
        }
        page = client.audit(last, None, None).await?;
    }
    chain.end()
}

fn verify_file(path: &Path, args: &VerifyArgs) -> Result<ExitCode> {
    let named = || path.display().to_string();
    let file = File::open(path).with_context(|| format!("{}: cannot be read", named()))?;
    let mut chain = Chain::new(None, args.head.clone());
    for (line, number) in BufReader::new(file).lines().zip(1..) {
        let line = line.with_context(|| format!("{}: cannot be read", named()))?;
        let entry = serde_json::from_str(&line).with_context(|| format!("{}:{number}: is no entry", named()))?;
        chain.follow(&entry)?;
    }
    chain.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(count: u64) -> Vec<AuditEntry> {
        let mut previous = "0".repeat(64);
        let entry = |number| {
            let mut entry = AuditEntry {
                number,
                unix_ms: 7,
                actor: "admin".to_owned(),
                namespace: None,
                action: "collect".to_owned(),
                object: String::new(),
                outcome: "ok".to_owned(),
                request_id: "r-1".to_owned(),
                previous: previous.clone(),
                hash: String::new(),
            };
            entry.hash = audit_digest(&entry);
            previous.clone_from(&entry.hash);
            entry
        };
        (1..=count).map(entry).collect()
    }

    fn check(entries: &[AuditEntry], head: Option<&AuditEntry>) -> Result<(), String> {
        let begin = AuditPlace {
            number: 0,
            hash: "0".repeat(64),
        };
        let mut chain = Chain::new(Some(begin), head.map(|e| (e.number, e.hash.clone())));
        for entry in entries {
            chain.follow(entry).map_err(|e| e.to_string())?;
        }
        chain.end().map(drop).map_err(|e| e.to_string())
    }

    #[test]
    fn whatever_is_altered_is_found() {
        let whole = entries(5);
        check(&whole, whole.last()).unwrap();
        let altered = |change: &dyn Fn(&mut Vec<AuditEntry>)| {
            let mut entries = whole.clone();
            change(&mut entries);
            check(&entries, whole.last()).unwrap_err()
        };
        assert!(altered(&|all| all[2].actor.push('x')).contains("entry 3 is not what its hash says"));
        assert!(altered(&|all| drop(all.remove(2))).contains("entry 4 follows entry 2"));
        // Written anew from there on, as who has the database can.
        let anew = altered(&|all| {
            all[2].outcome = "conflict".to_owned();
            for at in 2..5 {
                let before = all[at - 1].hash.clone();
                all[at].previous = before;
                all[at].hash = audit_digest(&all[at]);
            }
        });
        assert!(anew.contains("entry 5 with the hash"), "{anew}");
        assert!(altered(&|all| drop(all.pop())).contains("entry 5 with the hash"));
        let swapped = altered(&|all| {
            all[3].previous = "1".repeat(64);
            all[3].hash = audit_digest(&all[3]);
        });
        assert!(swapped.contains("does not have the hash of entry 3"), "{swapped}");
    }
}

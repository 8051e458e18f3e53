//! The schedules in memory: those of the versions that serve, and paused ones that none has at the moment.

use std::collections::{BTreeMap, BTreeSet};

use rekindle_wire::api::ScheduleInfo;
use rekindle_wire::schedule::{Schedule, Timetable};
use rekindle_wire::{FunctionId, ScheduleName, VersionNumber};

use super::runs::Progress;
use crate::store::StoredSchedule;

/// How long before a run is due an instance is restored for it.
const AHEAD_MS: i64 = 5_000;
/// How long that stays after the run was due.
const LINGER_MS: i64 = 3_000;

/// A function's schedule.
pub(super) type Key = (FunctionId, ScheduleName);

/// What a version that serves says of a schedule.
#[derive(Debug, Clone)]
pub(super) struct Live {
    pub(super) schedule: Schedule,
    pub(super) version: VersionNumber,
    pub(super) table: Timetable,
}

#[derive(Debug, Clone)]
pub(super) struct Entry {
    /// `None` if no version that serves has it.
    pub(super) live: Option<Live>,
    pub(super) paused: bool,
    pub(super) progress: Progress,
    /// When its next run is due.
    pub(super) next_unix_ms: Option<i64>,
    /// It is not looked at before: the last run could not be fired, or goes on.
    pub(super) not_before_unix_ms: i64,
}

impl Entry {
    /// Finds out when the next run is due.
    pub(super) fn foresee(&mut self) {
        let live = self.live.as_ref().filter(|_| !self.paused);
        self.next_unix_ms = live.and_then(|live| live.table.next_after(self.progress.decided_unix_ms));
    }

    /// Whether something is to be done about it.
    fn is_due(&self, now: i64) -> bool {
        let has_run = self.next_unix_ms.is_some_and(|next| next <= now) || !self.progress.waiting.is_empty();
        self.live.is_some() && !self.paused && has_run && self.not_before_unix_ms <= now
    }

    /// When something is to be done about it.
    fn due_at(&self) -> Option<i64> {
        let at = match self.progress.waiting.is_empty() {
            true => self.next_unix_ms?,
            false => self.not_before_unix_ms,
        };
        (self.live.is_some() && !self.paused).then(|| at.max(self.not_before_unix_ms))
    }

    /// Whether an instance is to stand by for it.
    fn is_upcoming(&self, now: i64) -> bool {
        let last = self.progress.last.as_ref().map(|last| last.due_unix_ms);
        let is_near = |due: &i64| *due - AHEAD_MS <= now && now <= *due + LINGER_MS;
        self.live.is_some() && !self.paused && self.next_unix_ms.iter().chain(&last).any(is_near)
    }

    pub(super) fn stored(&self, key: &Key) -> StoredSchedule<Progress> {
        StoredSchedule {
            function: key.0.clone(),
            name: key.1.clone(),
            paused: self.paused,
            progress: self.progress.clone(),
        }
    }

    /// What users see of it; `None` if no version that serves has it.
    pub(super) fn info(&self, key: &Key) -> Option<ScheduleInfo> {
        let Live { schedule, version, .. } = self.live.as_ref()?;
        Some(ScheduleInfo {
            function: key.0.clone(),
            name: key.1.clone(),
            version: *version,
            cron: schedule.cron.clone(),
            timezone: schedule.timezone.clone(),
            overlap: schedule.overlap,
            missed: schedule.missed,
            paused: self.paused,
            next_unix_ms: self.next_unix_ms,
            waiting: u32::try_from(self.progress.waiting.len()).unwrap_or(u32::MAX),
            last: self.progress.last.clone(),
        })
    }
}

/// What a change of the versions that serve changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// To be stored.
    pub(super) kept: BTreeSet<Key>,
    /// To be forgotten.
    pub(super) removed: BTreeSet<Key>,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) entries: BTreeMap<Key, Entry>,
    /// The revision of the catalog that it follows.
    pub(super) revision: Option<u64>,
}

impl Table {
    /// What was stored. None is live before [`Self::follow`].
    pub(super) fn read(stored: Vec<StoredSchedule<Progress>>) -> Self {
        let entries = stored.into_iter().map(|stored| {
            let entry = Entry {
                live: None,
                paused: stored.paused,
                progress: stored.progress,
                next_unix_ms: None,
                not_before_unix_ms: 0,
            };
            ((stored.function, stored.name), entry)
        });
        Self {
            entries: entries.collect(),
            revision: None,
        }
    }

    /// Follows what the versions that serve say. A schedule that is new, or has another rule, begins `now`.
    pub(super) fn follow(&mut self, serving: Vec<(FunctionId, VersionNumber, Schedule)>, now: i64) -> Changes {
        let mut changes = Changes::default();
        let mut there = BTreeSet::new();
        for (function, version, schedule) in serving {
            let key = (function, schedule.name.clone());
            let rule = schedule.rule();
            let known = self.entries.get(&key).and_then(|entry| entry.live.as_ref());
            let followed = known.filter(|live| live.schedule.rule() == rule);
            let table = match followed.map(|live| live.table.clone()) {
                Some(table) => Ok(table),
                None => Timetable::new(&schedule.cron, &schedule.timezone),
            };
            let is_followed = followed.is_some();
            let table = match table {
                Ok(table) => table,
                Err(error) => {
                    // It was checked at the deploy: an earlier release knew other expressions or zones.
                    let (function, name) = &key;
                    tracing::warn!(%function, schedule = %name, %error, "a schedule cannot be followed");
                    continue;
                }
            };
            let entry = self.entries.entry(key.clone()).or_insert_with(|| Entry {
                live: None,
                paused: false,
                progress: Progress::default(),
                next_unix_ms: None,
                not_before_unix_ms: 0,
            });
            let begins = entry.progress.rule != rule;
            if begins {
                entry.progress.begin(rule, now);
                changes.kept.insert(key.clone());
            }
            entry.live = Some(Live {
                schedule,
                version,
                table,
            });
            // Dates that are rare or never come are dear to look for, and most changes are about other functions.
            if begins || !is_followed {
                entry.foresee();
            }
            there.insert(key);
        }
        for (key, entry) in &mut self.entries {
            if there.contains(key) {
                continue;
            }
            entry.live = None;
            if !entry.paused {
                changes.removed.insert(key.clone());
            } else if !entry.progress.rule.is_empty() {
                // It stays paused for when it comes back, and then begins anew.
                entry.progress.begin(String::new(), now);
                changes.kept.insert(key.clone());
            }
        }
        self.entries.retain(|key, _| !changes.removed.contains(key));
        changes
    }

    /// The schedules about which something is to be done.
    pub(super) fn due(&self, now: i64) -> Vec<(Key, Entry)> {
        let due = self.entries.iter().filter(|(_, entry)| entry.is_due(now));
        due.map(|(key, entry)| (key.clone(), entry.clone())).collect()
    }

    pub(super) fn next_due(&self) -> Option<i64> {
        self.entries.values().filter_map(Entry::due_at).min()
    }

    /// Functions for which an instance is to stand by.
    pub(super) fn upcoming(&self, now: i64) -> BTreeSet<FunctionId> {
        let upcoming = self.entries.iter().filter(|(_, entry)| entry.is_upcoming(now));
        upcoming.map(|((function, _), _)| function.clone()).collect()
    }

    /// Forgets a deleted function.
    pub(super) fn forget(&mut self, function: &FunctionId) {
        self.entries.retain(|(of, _), _| of != function);
    }
}

#[cfg(test)]
mod tests {
    use rekindle_wire::schedule::{Missed, Overlap};

    use super::*;

    const MINUTE: i64 = 60_000;
    const START: i64 = 28_800_000 * MINUTE;

    fn schedule(name: &str, cron: &str) -> Schedule {
        Schedule {
            name: name.parse().unwrap(),
            cron: cron.to_owned(),
            timezone: "UTC".to_owned(),
            payload: None,
            overlap: Overlap::Skip,
            missed: Missed::Once,
        }
    }

    fn serving(version: u32, schedules: &[(&str, &str)]) -> Vec<(FunctionId, VersionNumber, Schedule)> {
        let all = schedules.iter().map(|(name, cron)| schedule(name, cron));
        all.map(|s| ("hello".parse().unwrap(), VersionNumber(version), s))
            .collect()
    }

    fn key(name: &str) -> Key {
        ("hello".parse().unwrap(), name.parse().unwrap())
    }

    fn set(names: &[&str]) -> BTreeSet<Key> {
        names.iter().map(|name| key(name)).collect()
    }

    #[test]
    fn a_schedule_begins_with_its_version_and_goes_on_in_the_next() {
        let mut table = Table::default();
        let changes = table.follow(serving(1, &[("a", "*/5 * * * *"), ("b", "@daily")]), START + 1);
        assert_eq!((changes.kept, changes.removed), (set(&["a", "b"]), set(&[])));
        assert_eq!(table.next_due(), Some(START + 5 * MINUTE));
        assert!(table.due(START + 5 * MINUTE - 1).is_empty());
        assert_eq!(table.due(START + 5 * MINUTE).len(), 1);
        // The next version keeps one, changes the other, and has a third.
        let next = serving(2, &[("a", "*/5 * * * *"), ("b", "@hourly"), ("c", "@hourly")]);
        let changes = table.follow(next, START + 7 * MINUTE);
        assert_eq!((changes.kept, changes.removed), (set(&["b", "c"]), set(&[])));
        assert_eq!(table.due(START + 7 * MINUTE).len(), 1, "a run of the first was due");
        assert_eq!(
            table.entries[&key("a")].live.as_ref().unwrap().version,
            VersionNumber(2)
        );
        let changes = table.follow(serving(3, &[]), START + 8 * MINUTE);
        assert_eq!(changes.removed, set(&["a", "b", "c"]));
        assert!(table.entries.is_empty() && table.next_due().is_none());
    }

    #[test]
    fn what_is_paused_stays_so_while_no_version_has_it_and_then_begins_anew() {
        let mut table = Table::default();
        table.follow(serving(1, &[("a", "* * * * *")]), START);
        table.entries.get_mut(&key("a")).unwrap().paused = true;
        assert!(table.due(START + 9 * MINUTE).is_empty() && table.next_due().is_none());
        let changes = table.follow(Vec::new(), START + 9 * MINUTE);
        assert_eq!((changes.kept, changes.removed), (set(&["a"]), set(&[])));
        assert!(table.entries[&key("a")].info(&key("a")).is_none());
        // A new leader reads it.
        let stored = table.entries[&key("a")].stored(&key("a"));
        let mut table = Table::read(vec![stored]);
        assert_eq!(table.follow(Vec::new(), START + 10 * MINUTE), Changes::default());
        table.follow(serving(1, &[("a", "* * * * *")]), START + 20 * MINUTE);
        let entry = table.entries.get_mut(&key("a")).unwrap();
        assert!(entry.paused && entry.info(&key("a")).unwrap().next_unix_ms.is_none());
        entry.paused = false;
        entry.foresee();
        assert_eq!(entry.next_unix_ms, Some(START + 21 * MINUTE));
    }

    #[test]
    fn a_new_leader_goes_on_where_the_one_before_was() {
        let mut before = Table::default();
        before.follow(serving(1, &[("a", "*/5 * * * *"), ("gone", "@daily")]), START);
        let stored = before.entries.iter().map(|(key, entry)| entry.stored(key)).collect();
        let mut table = Table::read(stored);
        assert!(table.due(START + 9 * MINUTE).is_empty(), "what serves is not known yet");
        let changes = table.follow(serving(1, &[("a", "*/5 * * * *")]), START + 9 * MINUTE);
        assert_eq!((changes.kept, changes.removed), (set(&[]), set(&["gone"])));
        assert_eq!(table.due(START + 9 * MINUTE).len(), 1, "it was due while none led");
    }

    #[test]
    fn a_change_elsewhere_has_no_due_time_looked_for_again() {
        let mut table = Table::default();
        table.follow(serving(1, &[("a", "*/5 * * * *")]), START);
        // A time that no search would find shows whether there was one.
        table.entries.get_mut(&key("a")).unwrap().next_unix_ms = Some(7);
        table.follow(serving(2, &[("a", "*/5 * * * *"), ("b", "@daily")]), START + MINUTE);
        assert_eq!(table.entries[&key("a")].next_unix_ms, Some(7));
        table.follow(serving(3, &[("a", "*/7 * * * *")]), START + MINUTE);
        assert!(table.entries[&key("a")].next_unix_ms > Some(START));
    }

    #[test]
    fn an_instance_stands_by_from_shortly_before_a_run() {
        let mut table = Table::default();
        table.follow(serving(1, &[("a", "*/5 * * * *")]), START);
        let due = START + 5 * MINUTE;
        assert!(table.upcoming(due - AHEAD_MS - 1).is_empty());
        assert_eq!(table.upcoming(due - AHEAD_MS).len(), 1);
        let entry = table.entries.get_mut(&key("a")).unwrap();
        entry.progress.decided_unix_ms = due;
        entry.progress.fired(rekindle_wire::api::ScheduledRun {
            due_unix_ms: due,
            fired_unix_ms: due,
            call: None,
        });
        entry.foresee();
        assert_eq!(
            table.upcoming(due + LINGER_MS).len(),
            1,
            "its call may not have come yet"
        );
        assert!(table.upcoming(due + LINGER_MS + 1).is_empty());
        table.forget(&"hello".parse().unwrap());
        assert!(table.entries.is_empty());
    }
}

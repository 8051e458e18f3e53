//! `[[schedule]]` in `fn.toml`.

use std::collections::BTreeSet;
use std::ops::Range;

use serde::Deserialize;
use serde_json::Value;
use toml::Spanned;

use crate::schedule::{
    DEFAULT_TIMEZONE, Missed, Overlap, PAYLOAD_MAX, SCHEDULES_MAX, Schedule, ScheduleError, ScheduleName, Timetable,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawSchedule {
    cron: Spanned<String>,
    name: Option<Spanned<String>>,
    timezone: Option<Spanned<String>>,
    payload: Option<Spanned<toml::Value>>,
    overlap: Option<Spanned<String>>,
    missed: Option<Spanned<String>>,
}

/// What is wrong with one of several tables, and where.
pub(super) struct Wrong {
    pub(super) at: Range<usize>,
    pub(super) message: String,
}

pub(super) fn refuse<T>(at: Range<usize>, message: impl Into<String>) -> Result<T, Wrong> {
    let message = message.into();
    Err(Wrong { at, message })
}

/// The schedules, checked.
pub(super) fn checked(all: Vec<RawSchedule>) -> Result<Vec<Schedule>, Wrong> {
    if let Some(extra) = all.get(SCHEDULES_MAX) {
        let message = format!("more than {SCHEDULES_MAX} schedules: have one run of the function do several things");
        return refuse(extra.cron.span(), message);
    }
    let are_several = all.len() > 1;
    let mut names = BTreeSet::new();
    let mut checked = Vec::new();
    for raw in all {
        let at = raw.name.as_ref().map_or_else(|| raw.cron.span(), Spanned::span);
        let schedule = one(raw, are_several)?;
        if !names.insert(schedule.name.clone()) {
            return refuse(at, format!("two schedules are named \"{}\": rename one", schedule.name));
        }
        checked.push(schedule);
    }
    Ok(checked)
}

fn one(raw: RawSchedule, are_several: bool) -> Result<Schedule, Wrong> {
    let name = match &raw.name {
        None if are_several => {
            let message = "each of several schedules needs a name: write name = \"nightly\" beside cron";
            return refuse(raw.cron.span(), message);
        }
        None => ScheduleName::default(),
        Some(name) => match name.get_ref().parse() {
            Ok(name) => name,
            Err(e) => return refuse(name.span(), format!("{e}")),
        },
    };
    let timezone = raw.timezone.as_ref();
    let zone = timezone.map_or(DEFAULT_TIMEZONE, |zone| zone.get_ref());
    if let Err(e) = Timetable::new(raw.cron.get_ref(), zone).and_then(|table| table.check_comes()) {
        let at = match (&e, timezone) {
            (ScheduleError::Zone(_), Some(zone)) => zone.span(),
            _ => raw.cron.span(),
        };
        return refuse(at, format!("{e}"));
    }
    let overlap = match raw.overlap.as_ref().map(|word| (word.get_ref().as_str(), word.span())) {
        None | Some(("skip", _)) => Overlap::Skip,
        Some(("queue", _)) => Overlap::Queue,
        Some((other, span)) => {
            let message = format!(
                "overlap = \"{other}\" is not known: use \"skip\" (the default: no run begins while the one before \
                 goes on) or \"queue\" (it waits for that)"
            );
            return refuse(span, message);
        }
    };
    let missed = match raw.missed.as_ref().map(|word| (word.get_ref().as_str(), word.span())) {
        None | Some(("once", _)) => Missed::Once,
        Some(("skip", _)) => Missed::Skip,
        Some(("each", span)) if overlap == Overlap::Skip => {
            let message = "missed = \"each\" has runs wait for each other: write overlap = \"queue\" too";
            return refuse(span, message);
        }
        Some(("each", _)) => Missed::Each,
        Some((other, span)) => {
            let message = format!(
                "missed = \"{other}\" is not known: use \"once\" (the default: the newest of them runs), \"each\" or \
                 \"skip\""
            );
            return refuse(span, message);
        }
    };
    Ok(Schedule {
        name,
        timezone: zone.to_owned(),
        payload: raw.payload.map(payload).transpose()?,
        overlap,
        missed,
        cron: raw.cron.into_inner(),
    })
}

fn payload(payload: Spanned<toml::Value>) -> Result<Value, Wrong> {
    let at = payload.span();
    let Some(value) = as_json(payload.into_inner()) else {
        return refuse(
            at,
            "payload has a number that JSON has not (inf or nan): write another value",
        );
    };
    if value.to_string().len() > PAYLOAD_MAX {
        let kib = PAYLOAD_MAX >> 10;
        let message = format!("payload has more than {kib} KiB: put the data into a file of the folder");
        return refuse(at, message);
    }
    Ok(value)
}

/// The value as JSON; dates and times are texts there. `None` for a number that JSON cannot say.
fn as_json(value: toml::Value) -> Option<Value> {
    Some(match value {
        toml::Value::String(text) => text.into(),
        toml::Value::Integer(number) => number.into(),
        toml::Value::Float(number) => serde_json::Number::from_f64(number)?.into(),
        toml::Value::Boolean(yes) => yes.into(),
        toml::Value::Datetime(time) => time.to_string().into(),
        toml::Value::Array(values) => Value::Array(values.into_iter().map(as_json).collect::<Option<_>>()?),
        toml::Value::Table(table) => {
            let pairs = table.into_iter().map(|(key, value)| Some((key, as_json(value)?)));
            Value::Object(pairs.collect::<Option<_>>()?)
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{FunctionConfig, FunctionConfigError, parse};
    use super::*;

    const START: &str = "name = \"f\"\nruntime = \"python\"\nentry = \"m.h\"\n";

    fn read(schedules: &str) -> Result<FunctionConfig, FunctionConfigError> {
        parse(&format!("{START}{schedules}"))
    }

    #[test]
    fn a_schedule_has_a_cron_expression_and_defaults() {
        let config = read("[[schedule]]\ncron = \"*/5 * * * *\"\n").unwrap();
        assert_eq!(
            config.schedules,
            [Schedule {
                name: "default".parse().unwrap(),
                cron: "*/5 * * * *".to_owned(),
                timezone: "UTC".to_owned(),
                payload: None,
                overlap: Overlap::Skip,
                missed: Missed::Once,
            }]
        );
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<FunctionConfig>(&text).unwrap(), config);
        assert!(
            !serde_json::to_string(&parse(START).unwrap())
                .unwrap()
                .contains("schedule")
        );
    }

    #[test]
    fn a_payload_is_any_value_and_becomes_json() {
        let config = read(
            "[[schedule]]\nname = \"a\"\ncron = \"@daily\"\ntimezone = \"Europe/Berlin\"\noverlap = \"queue\"\n\
             missed = \"each\"\npayload = { day = 2026-11-27, parts = [1, 2.5, true, \"x\"] }\n\
             [[schedule]]\nname = \"b\"\ncron = \"@hourly\"\npayload = \"text\"\n",
        )
        .unwrap();
        let payloads: Vec<_> = config.schedules.iter().map(|s| s.payload.clone().unwrap()).collect();
        assert_eq!(
            payloads,
            [
                json!({"day": "2026-11-27", "parts": [1, 2.5, true, "x"]}),
                json!("text")
            ]
        );
        assert_eq!(config.schedules[0].rule(), "@daily Europe/Berlin");
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let two = "[[schedule]]\ncron = \"@daily\"\n[[schedule]]\ncron = \"@hourly\"\n";
        let same = "[[schedule]]\nname = \"a\"\ncron = \"@daily\"\n[[schedule]]\nname = \"a\"\ncron = \"@daily\"\n";
        let many: String = (0..=SCHEDULES_MAX)
            .map(|n| format!("[[schedule]]\nname = \"s{n}\"\ncron = \"@daily\"\n"))
            .collect();
        let long = format!(
            "[[schedule]]\ncron = \"@daily\"\npayload = \"{}\"\n",
            "x".repeat(PAYLOAD_MAX)
        );
        for (text, line, why) in [
            ("[[schedule]]\ncron = \"* * *\"\n", 5, "cannot be read"),
            ("[[schedule]]\ncron = \"59 59 23 31 2 *\"\n", 5, "never fires"),
            ("[[schedule]]\ncron = \"@daily\"\ntimezone = \"Mars\"\n", 6, "IANA"),
            ("[[schedule]]\ncron = \"@daily\"\nname = \"A b\"\n", 6, "not usable"),
            ("[[schedule]]\ncron = \"@daily\"\noverlap = \"both\"\n", 6, "\"skip\""),
            ("[[schedule]]\ncron = \"@daily\"\nmissed = \"all\"\n", 6, "\"each\""),
            (
                "[[schedule]]\ncron = \"@daily\"\nmissed = \"each\"\n",
                6,
                "overlap = \"queue\"",
            ),
            ("[[schedule]]\ncron = \"@daily\"\npayload = nan\n", 6, "JSON"),
            (two, 5, "needs a name"),
            (same, 8, "rename one"),
            (&many, 4 + 3 * 20 + 2, "more than 20"),
            (&long, 6, "16 KiB"),
        ] {
            let error = read(text).unwrap_err();
            assert!(
                error.message.contains(why) && error.line == Some(line),
                "{text}: {error:?}"
            );
        }
        let error = read("[[schedule]]\nname = \"a\"\n").unwrap_err();
        assert!(error.message.contains("cron"), "{error}");
    }
}

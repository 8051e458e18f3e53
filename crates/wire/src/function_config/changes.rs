//! Differences between two configs, and what a deploy has to do because of them.

use serde::Serialize;
use serde_json::{Map, Value};

use super::FunctionConfig;

/// What a deploy does to make a version, from least to most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// Nothing: it would be the same version.
    Nothing,
    /// It takes over the snapshot as it is.
    Settings,
    /// It takes over the files, and is booted for a snapshot of its own.
    Boot,
    /// All of it.
    Build,
}

/// A setting in which two configs differ.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SettingChange {
    /// The setting, as in `env.MODE`. Durations are in milliseconds, sizes in bytes.
    pub setting: String,
    /// Its value in the first config, `null` if it has none.
    pub old: Value,
    /// Its value in the second config, `null` if it has none.
    pub new: Value,
}

impl SettingChange {
    /// What a deploy has to do because of it.
    pub fn work(&self) -> Work {
        let top = self.setting.split('.').next().unwrap_or_default();
        match top {
            // The platform reads these, and the function does not. What a build command made are files.
            "timeout" | "boot_timeout" | "concurrency" | "max_instances" | "idle" | "park" | "adaptive"
            | "min_warm" | "min_parked" | "idempotent" | "auth" | "jwt" | "allow" | "cors" | "async" | "schedule"
            | "source" | "build_command" => Work::Settings,
            // The memory of a snapshot depends on these.
            "memory" | "cpu" | "tmp" | "env" | "secrets" | "warmup" | "hooks" | "snapshot" | "unique" | "rehearse"
            | "fresh" | "network" | "protocol" => Work::Boot,
            _ => Work::Build,
        }
    }
}

impl FunctionConfig {
    /// The settings in which `new` differs, by name.
    pub fn changes(&self, new: &Self) -> Vec<SettingChange> {
        let (old, new) = (settings(self), settings(new));
        let mut names: Vec<&String> = old.keys().chain(new.keys()).collect();
        names.sort();
        names.dedup();
        let of = |settings: &Map<String, Value>, name| settings.get(name).cloned().unwrap_or_default();
        let changes = names.into_iter().map(|name| SettingChange {
            setting: name.clone(),
            old: of(&old, name),
            new: of(&new, name),
        });
        changes.filter(|change| change.old != change.new).collect()
    }
}

/// The settings by name, those of tables with a point.
fn settings(config: &FunctionConfig) -> Map<String, Value> {
    let mut settings = Map::new();
    // Every map in a config has texts for keys.
    let Ok(Value::Object(top)) = serde_json::to_value(config) else {
        return settings;
    };
    for (name, value) in top {
        let plain = |name: &str| name.strip_suffix("_ms").unwrap_or(name).to_owned();
        match value {
            Value::Object(table) => {
                let in_table = table.into_iter().map(|(key, value)| match name.as_str() {
                    "env" => (format!("env.{key}"), value),
                    _ => (format!("{name}.{}", plain(&key)), value),
                });
                settings.extend(in_table);
            }
            value => drop(settings.insert(plain(&name), value)),
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    const START: &str = "name = \"f\"\nruntime = \"python\"\nentry = \"m.h\"\n";

    fn changes(old: &str, new: &str) -> Vec<SettingChange> {
        let read = |text: &str| parse(&format!("{START}{text}")).unwrap();
        read(old).changes(&read(new))
    }

    #[test]
    fn settings_are_compared_one_by_one_with_what_each_asks_for() {
        assert_eq!(changes("memory = \"64MiB\"", "memory = \"65536KiB\""), []);
        for (old, new, setting, work) in [
            ("timeout = \"3s\"", "timeout = \"4s\"", "timeout", Work::Settings),
            ("boot_timeout = \"40s\"", "", "boot_timeout", Work::Settings),
            ("concurrency = 2", "concurrency = 3", "concurrency", Work::Settings),
            ("", "max_instances = 3", "max_instances", Work::Settings),
            ("", "auth = \"key\"", "auth", Work::Settings),
            (
                "[cors]\norigins = [\"*\"]",
                "[cors]\norigins = [\"https://a.example\"]",
                "cors.origins",
                Work::Settings,
            ),
            ("idle = \"9s\"", "idle = \"8s\"", "idle", Work::Settings),
            ("", "[async]\nmax_age = \"2h\"", "async.max_age", Work::Settings),
            ("", "[[schedule]]\ncron = \"@daily\"", "schedule", Work::Settings),
            (
                "",
                "[[source]]\ntype = \"nats\"\nurl = \"nats://q:4222\"\nstream = \"S\"",
                "source",
                Work::Settings,
            ),
            ("", "memory = \"64MiB\"", "memory", Work::Boot),
            ("", "env = { A_ms = \"1\" }", "env.A_ms", Work::Boot),
            ("", "[[warmup]]\npath = \"/a\"", "warmup", Work::Boot),
            ("", "snapshot = false", "snapshot", Work::Boot),
            ("", "secrets = [\"A\"]", "secrets", Work::Boot),
        ] {
            let [only] = &changes(old, new)[..] else {
                panic!("{old} and {new}: {:?}", changes(old, new));
            };
            assert_eq!((only.setting.as_str(), only.work()), (setting, work));
        }
        let [only] = &changes("env = { A = \"1\" }", "")[..] else {
            panic!("one variable went");
        };
        assert_eq!((&only.old, &only.new), (&Value::from("1"), &Value::Null));
    }

    #[test]
    fn what_is_built_differently_is_built_anew() {
        let old = parse(START).unwrap();
        let new = parse(&START.replace("m.h", "m.other")).unwrap();
        let changes = old.changes(&new);
        assert_eq!(
            changes.iter().map(SettingChange::work).collect::<Vec<_>>(),
            [Work::Build]
        );
    }
}

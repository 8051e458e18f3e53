//! What to write instead of what TOML's own errors refuse.

/// How alike a key and another are that was probably meant.
const ALIKE: f64 = 0.84;
/// Keys that other platforms have for what is called otherwise here.
const ELSEWHERE: [(&str, &str); 4] = [
    ("handler", "entry"),
    ("environment", "env"),
    ("schedules", "schedule"),
    ("sources", "source"),
];

/// What to write instead, if it is clear. `line` counts from 1.
pub(super) fn on(text: &str, line: usize, message: &str) -> Option<String> {
    let written = text.lines().nth(line - 1)?.trim();
    if let Some(unknown) = message.strip_prefix("unknown field `") {
        let (unknown, expected) = unknown.split_once('`')?;
        let section = text.lines().take(line).filter_map(section).last();
        if let Some(section) = section.filter(|_| is_setting(unknown)) {
            return Some(format!(
                "{unknown} is no part of [{section}]: write it above [{section}]"
            ));
        }
        let meant = ELSEWHERE
            .iter()
            .find(|(other, _)| *other == unknown)
            .map(|(_, own)| *own);
        return Some(format!(
            "did you mean {}?",
            meant.or_else(|| nearest(unknown, expected))?
        ));
    }
    if !message.starts_with("invalid type") {
        return None;
    }
    let section = text.lines().take(line).filter_map(section).last();
    if let Some(section @ ("schedule" | "source" | "warmup")) = section
        && written.starts_with('[')
    {
        return Some(format!("write [[{section}]], as there may be several"));
    }
    let key = written.split_once('=')?.0.trim();
    let example = match (section, key) {
        (Some("env"), key) => return Some(format!("write it as in `{key} = \"1\"`, as variables are text")),
        (Some("build"), "command") => r#"command = "make""#,
        (None, "build") => {
            return Some(r#"write it as in `[build]`, with `command = "make"` in the next line"#.to_owned());
        }
        (_, key) => EXAMPLES
            .iter()
            .find(|example| example.split(" =").next() == Some(key))?,
    };
    Some(format!("write it as in `{example}`"))
}

/// The name of the table that this line begins.
fn section(line: &str) -> Option<&str> {
    let name = line.trim().strip_prefix('[')?;
    Some(name.trim_start_matches('[').split(']').next()?.trim())
}

/// Of the names between backticks, the one that is most like another.
fn nearest<'a>(unknown: &str, names: &'a str) -> Option<&'a str> {
    let likeness = |name: &&str| strsim::jaro_winkler(unknown, name);
    let nearest = names
        .split('`')
        .skip(1)
        .step_by(2)
        .max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
    (likeness(&nearest) >= ALIKE).then_some(nearest)
}

/// Whether `fn.toml` has a key of this name at its top level.
pub(super) fn is_setting(key: &str) -> bool {
    let example = EXAMPLES
        .iter()
        .position(|example| example.split(" =").next() == Some(key));
    example.is_some_and(|place| place < IN_TABLES)
}

/// Where the examples of keys in tables begin.
const IN_TABLES: usize = EXAMPLES.len() - 11;

pub(in super::super) const EXAMPLES: &[&str] = &[
    r#"name = "hello""#,
    r#"runtime = "python""#,
    r#"image = "./image.tar""#,
    r#"interface = "lambda""#,
    "port = 8080",
    r#"protocol = "h2c""#,
    r#"entry = "main.handler""#,
    r#"command = ["./server", "--quiet"]"#,
    r#"memory = "256MiB""#,
    "cpu = 0.5",
    r#"timeout = "30s""#,
    r#"boot_timeout = "5m""#,
    "concurrency = 1",
    "max_instances = 10",
    r#"idle = "10m""#,
    r#"park = "1h""#,
    "min_warm = 1",
    "min_parked = 1",
    r#"tmp = "64MiB""#,
    "snapshot = true",
    "rehearse = true",
    "fresh = true",
    "idempotent = true",
    r#"auth = "key""#,
    r#"network = "egress""#,
    r#"secrets = ["DB_URL"]"#,
    "max_attempts = 3",
    r#"max_age = "1h""#,
    r#"cron = "*/5 * * * *""#,
    r#"timezone = "Europe/Berlin""#,
    r#"overlap = "skip""#,
    r#"missed = "once""#,
    r#"stream = "ORDERS""#,
    "batch = 10",
    r#"batch_window = "1s""#,
    "max_deliveries = 5",
    r#"dead_letter = "orders.dead""#,
];

#[cfg(test)]
mod tests {
    use super::super::parse;

    #[test]
    fn an_error_of_toml_says_what_was_meant() {
        let hello = "name = \"hello\"\nruntime = \"python\"\n";
        for (text, advice) in [
            ("memroy = \"1GiB\"", "did you mean memory?"),
            ("handler = \"main.f\"", "did you mean entry?"),
            ("build = \"make\"", "`[build]`"),
            ("[build]\ncommand = [\"make\"]", "`command = \"make\"`"),
            ("[env]\nDEBUG = 1", "`DEBUG = \"1\"`"),
            ("[hooks]\ntimeout = \"9s\"", "write it above [hooks]"),
            ("[schedule]\ncron = \"* * * * *\"", "[[schedule]]"),
            ("[warmup]\npath = \"/\"", "[[warmup]]"),
            ("command = \"./server\"", "`command = [\"./server\", \"--quiet\"]`"),
        ] {
            let error = parse(&format!("{hello}{text}\n")).unwrap_err().to_string();
            assert!(error.contains(advice), "{text}: {error}");
        }
        let strange = parse(&format!("{hello}xyz = 1\n")).unwrap_err().to_string();
        assert!(!strange.contains("did you mean"), "{strange}");
    }
}

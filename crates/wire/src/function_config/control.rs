//! Control characters in values: terminals, logs and lists of lines would misinterpret them.

use toml::Value;

/// Values with several lines: scripts, certificates, bodies of requests.
const LINES: [&str; 4] = ["env", "schedule.payload", "warmup.body", "build.command"];

/// The first value or name with a control character, as `(key, path)`, in readable form.
pub(super) fn find(text: &str) -> Option<(String, String)> {
    let table: toml::Table = text.parse().ok()?;
    table.iter().find_map(|(key, value)| below(key, key, value))
}

fn below(key: &str, path: &str, value: &Value) -> Option<(String, String)> {
    let found = || Some((key.escape_debug().to_string(), path.escape_debug().to_string()));
    let may_have_lines = LINES.iter().any(|l| path == *l || path.starts_with(&format!("{l}.")));
    if key.chars().any(is_control) {
        return found();
    }
    match value {
        Value::String(text)
            if text
                .chars()
                .any(|c| is_control(c) && !(may_have_lines && "\n\t".contains(c))) =>
        {
            found()
        }
        Value::Array(values) => values.iter().find_map(|v| below(key, path, v)),
        Value::Table(table) => table.iter().find_map(|(k, v)| below(k, &format!("{path}.{k}"), v)),
        _ => None,
    }
}

fn is_control(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::super::parse;

    const START: &str = "name = \"f\"\nruntime = \"http\"\n";

    #[test]
    fn control_characters_are_refused_with_the_setting_and_its_line() {
        for (line, named) in [
            (r#"command = ["./server", "a\nb"]"#, "command"),
            (r#"command = ["./a\u001b[2J"]"#, "command"),
            (r#"env = { A = "x\u0007" }"#, "env.A"),
            (r#"env = { A = "x\u0085" }"#, "env.A"),
            (r#"env = { A = "x\r" }"#, "env.A"),
            (r#"env = { "A\nB" = "x" }"#, "env.A\\nB"),
            (r#"entry = "a\u2028b""#, "entry"),
            ("[build]\ncommand = \"make\\u0000\"", "build.command"),
        ] {
            let error = parse(&format!("{START}{line}\n")).unwrap_err();
            assert!(
                error.message.contains(&format!("{named} has a control character")),
                "{line}: {error:?}"
            );
            assert!(error.line.is_some_and(|n| n >= 3), "{line}: {error:?}");
        }
        let lines = "command = [\"./s\"]\nenv = { KEY = \"-----BEGIN\\n\\tx\\n\" }\n[build]\ncommand = \"a\\nb\"\n";
        parse(&format!("{START}{lines}")).unwrap();
    }
}

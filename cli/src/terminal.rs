//! What a terminal obeys instead of showing it. Printed text may be a function's: its output, names
//! of its files and processes, messages about them.

/// The sequences that begin each tone of `show`, in their order.
pub(crate) const COLOURS: [&str; 4] = ["\x1b[32m", "\x1b[33m", "\x1b[31;1m", "\x1b[2m"];
/// The sequence that ends one.
pub(crate) const PLAIN: &str = "\x1b[0m";

/// Whether a terminal may obey this character instead of showing it: control characters (C0 and C1), and those that
/// change the direction of text or end its lines.
fn is_obeyed(c: char) -> bool {
    const DIRECTIONS: [char; 3] = ['\u{61c}', '\u{200e}', '\u{200f}'];
    c.is_control() || DIRECTIONS.contains(&c) || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Text from others, safe for a terminal: characters that it would obey, except those in `keep`, are shown as escapes.
pub(crate) fn harmless(text: &str, keep: &[char]) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_obeyed(c) && !keep.contains(&c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Like [`harmless`] for text with several lines and the colours.
pub(crate) fn harmless_but_colours(mut text: &str) -> String {
    const KEPT: [char; 2] = ['\t', '\n'];
    let mut shown = String::with_capacity(text.len());
    while let Some(at) = text.find('\x1b') {
        let (before, rest) = text.split_at(at);
        shown.push_str(&harmless(before, &KEPT));
        let colour = COLOURS
            .into_iter()
            .chain([PLAIN])
            .find(|colour| rest.starts_with(colour));
        shown.push_str(colour.unwrap_or("\\u{1b}"));
        text = &rest[colour.map_or(1, str::len)..];
    }
    shown + &harmless(text, &KEPT)
}

/// JSON without characters that a terminal obeys. They occur in its strings only, where an escape means the same.
pub(crate) fn json_escaped(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '\n' => shown.push(c),
            _ if is_obeyed(c) => shown.push_str(&format!("\\u{:04x}", u32::from(c))),
            _ => shown.push(c),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_function_commands_the_terminal_but_colours_stay() {
        assert_eq!(
            harmless_but_colours("\x1b[33mnone:\x1b[0m \x1b]0;PWNED\x07 \x1b[8mhidden\n\tend\x1b"),
            "\x1b[33mnone:\x1b[0m \\u{1b}]0;PWNED\\u{7} \\u{1b}[8mhidden\n\tend\\u{1b}"
        );
        assert_eq!(
            harmless("a\u{202e}b\u{2066}c\u{9b}d\u{2028}é👍", &[]),
            "a\\u{202e}b\\u{2066}c\\u{9b}d\\u{2028}é👍"
        );
        let hostile = "\u{202e}\u{9b}2J\x1b[0m\n";
        let json = json_escaped(&serde_json::to_string_pretty(&[hostile]).unwrap());
        assert!(json.chars().all(|c| c == '\n' || !is_obeyed(c)), "{json:?}");
        assert_eq!(serde_json::from_str::<[String; 1]>(&json).unwrap(), [hostile]);
    }
}

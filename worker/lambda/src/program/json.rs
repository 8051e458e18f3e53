//! JSON values: what events are made of, and what functions answer.

use std::fmt::{self, Write as _};

/// How deep values may be nested.
const DEPTH_MAX: usize = 128;

/// A JSON value. Numbers stay as they are written.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    List(Vec<Value>),
    Object(Vec<(String, Value)>),
}

impl Value {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// An object with these members.
    pub(crate) fn object<const N: usize>(members: [(&str, Value); N]) -> Self {
        Self::Object(members.map(|(name, value)| (name.to_owned(), value)).into())
    }

    /// The member of an object. Of several with one name, the last counts.
    pub(crate) fn get(&self, name: &str) -> Option<&Self> {
        match self {
            Self::Object(members) => members.iter().rev().find(|(known, _)| known == name).map(|(_, v)| v),
            _ => None,
        }
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Parses a whole text. `None` if it is not JSON, or is nested too deep.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let mut parser = Parser {
            text: std::str::from_utf8(text).ok()?,
            at: 0,
        };
        let value = parser.value(0)?;
        parser.skip_space();
        (parser.at == text.len()).then_some(value)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Number(number) => f.write_str(number),
            Self::Text(text) => write_text(f, text),
            Self::List(values) => {
                f.write_char('[')?;
                for (at, value) in values.iter().enumerate() {
                    f.write_str(if at > 0 { "," } else { "" })?;
                    write!(f, "{value}")?;
                }
                f.write_char(']')
            }
            Self::Object(members) => {
                f.write_char('{')?;
                for (at, (name, value)) in members.iter().enumerate() {
                    f.write_str(if at > 0 { "," } else { "" })?;
                    write_text(f, name)?;
                    write!(f, ":{value}")?;
                }
                f.write_char('}')
            }
        }
    }
}

fn write_text(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    f.write_char('"')?;
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| c < ' ' || c == '"' || c == '\\') {
        f.write_str(&rest[..at])?;
        match rest.as_bytes()[at] {
            b'\n' => f.write_str("\\n")?,
            b'\r' => f.write_str("\\r")?,
            b'\t' => f.write_str("\\t")?,
            byte @ (b'"' | b'\\') => write!(f, "\\{}", char::from(byte))?,
            byte => write!(f, "\\u{byte:04x}")?,
        }
        rest = &rest[at + 1..];
    }
    f.write_str(rest)?;
    f.write_char('"')
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn take(&mut self, word: &str) -> Option<()> {
        self.text[self.at..].starts_with(word).then(|| self.at += word.len())
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        if depth > DEPTH_MAX {
            return None;
        }
        self.skip_space();
        match self.peek()? {
            b'n' => self.take("null").map(|()| Value::Null),
            b't' => self.take("true").map(|()| Value::Bool(true)),
            b'f' => self.take("false").map(|()| Value::Bool(false)),
            b'"' => self.string().map(Value::Text),
            b'[' => {
                let mut values = Vec::new();
                self.items(b']', |parser| {
                    values.push(parser.value(depth + 1)?);
                    Some(())
                })?;
                Some(Value::List(values))
            }
            b'{' => {
                let mut members = Vec::new();
                self.items(b'}', |parser| {
                    parser.skip_space();
                    let name = parser.string()?;
                    parser.skip_space();
                    parser.take(":")?;
                    members.push((name, parser.value(depth + 1)?));
                    Some(())
                })?;
                Some(Value::Object(members))
            }
            _ => self.number().map(Value::Number),
        }
    }

    /// Reads items separated by commas up to `end`. The opening bracket is next.
    fn items(&mut self, end: u8, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.at += 1;
        self.skip_space();
        if self.peek()? == end {
            self.at += 1;
            return Some(());
        }
        loop {
            item(self)?;
            self.skip_space();
            let next = self.peek()?;
            self.at += 1;
            match next {
                b',' => {}
                _ if next == end => return Some(()),
                _ => return None,
            }
        }
    }

    fn digits(&mut self) -> Option<()> {
        let from = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        (self.at > from).then_some(())
    }

    fn number(&mut self) -> Option<String> {
        let from = self.at;
        let _sign = self.take("-");
        match self.peek()? {
            b'0' => self.at += 1,
            _ => self.digits()?,
        }
        if self.take(".").is_some() {
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Some(self.text[from..self.at].to_owned())
    }

    fn string(&mut self) -> Option<String> {
        self.take("\"")?;
        let mut text = String::new();
        loop {
            let rest = &self.text[self.at..];
            let at = rest.find(|c: char| c < ' ' || c == '"' || c == '\\')?;
            text.push_str(&rest[..at]);
            self.at += at + 1;
            match rest.as_bytes()[at] {
                b'"' => return Some(text),
                b'\\' => text.push(self.escaped()?),
                _ => return None,
            }
        }
    }

    fn escaped(&mut self) -> Option<char> {
        let kind = self.peek()?;
        self.at += 1;
        Some(match kind {
            b'"' | b'\\' | b'/' => char::from(kind),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = self.unit()?;
                let low = match first {
                    0xd800..=0xdbff if self.take("\\u").is_some() => self.unit()?,
                    _ => 0,
                };
                let both = char::decode_utf16([first, low]).next();
                // Half of a pair stands for no character.
                both.and_then(Result::ok).unwrap_or(char::REPLACEMENT_CHARACTER)
            }
            _ => return None,
        })
    }

    fn unit(&mut self) -> Option<u16> {
        let digits = self.text.get(self.at..self.at + 4)?;
        self.at += 4;
        let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hex.then(|| u16::from_str_radix(digits, 16).ok())?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_they_were_read() {
        for text in [
            "null",
            "[true,false,[],{}]",
            r#"{"a":{"b":[1,-2.5e+10,0]},"c":"\"\\\n\u0001é😀"}"#,
            "12345678901234567890.123",
        ] {
            assert_eq!(Value::parse(text.as_bytes()).unwrap().to_string(), text);
        }
        let spaced = Value::parse(b" { \"a\" : [ 1 , 2 ] } \n").unwrap();
        assert_eq!(spaced.to_string(), r#"{"a":[1,2]}"#);
        let pair = Value::parse(br#""\ud83d\ude00\ud83d\u0041\/""#).unwrap();
        assert_eq!(pair.as_str(), Some("😀\u{fffd}/"));
    }

    #[test]
    fn what_is_not_json_is_refused() {
        let deep = "[".repeat(200) + &"]".repeat(200);
        for text in [
            "",
            "nul",
            "01",
            "1.",
            "-",
            "1e",
            "[1,]",
            "{\"a\"}",
            "{a:1}",
            "\"",
            "\"\n\"",
            "\"\\x\"",
            "\"\\u12g4\"",
            "1 2",
            "{\"a\":1,}",
            "[1",
            &deep,
        ] {
            assert_eq!(Value::parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(Value::parse(b"\"\xff\""), None);
    }
}

//! Object keys as file names: any key becomes one flat, safe name, from which the key can be recovered.

use percent_encoding::percent_decode_str;

/// Longest escaped key that is used as it is. NAME_MAX is 255 bytes on every Linux file system that matters.
const LONGEST_PLAIN: usize = 240;
/// How much of a longer one is kept, for whoever looks at the directory.
const KEPT_OF_LONG: usize = 150;

/// What a file name says about its key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ParsedFileName {
    /// The name is the whole key.
    Key(String),
    /// The key was too long: it is in the file's metadata.
    Hashed,
    /// The name is not one of ours.
    Foreign,
}

/// The file name of `key`. Distinct keys have distinct names; none contains `/`, starts with a dot or exceeds NAME_MAX.
pub(crate) fn file_name(key: &str) -> String {
    let escaped = escape(key, |byte| {
        byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') || byte >= 0x80
    });
    if escaped.len() <= LONGEST_PLAIN {
        return escaped;
    }
    let mut end = KEPT_OF_LONG;
    while !escaped.is_char_boundary(end) {
        end -= 1;
    }
    // A plain name never contains '~': it is escaped there.
    format!("{}~{}", &escaped[..end], blake3::hash(key.as_bytes()).to_hex())
}

/// The inverse of [`file_name`].
pub(crate) fn key_of(name: &str) -> ParsedFileName {
    if name.contains('~') {
        return ParsedFileName::Hashed;
    }
    match percent_decode_str(name).decode_utf8() {
        // Only the name that we would give it counts, so that no key is listed that cannot be read.
        Ok(key) if file_name(&key) == name => ParsedFileName::Key(key.into_owned()),
        _ => ParsedFileName::Foreign,
    }
}

/// `text` with every byte that is not `plain` as `%XX`. Bytes from 0x80 on are either all plain or all not.
pub(crate) fn escape(text: &str, plain: impl Fn(u8) -> bool) -> String {
    let mut escaped = String::with_capacity(text.len() + 16);
    for char in text.chars() {
        let mut bytes = [0; 4];
        for &byte in char.encode_utf8(&mut bytes).as_bytes() {
            if !plain(byte) {
                escaped.push('%');
                for digit in [byte >> 4, byte & 0xf] {
                    escaped.push(char::from(b"0123456789ABCDEF"[usize::from(digit)]));
                }
            } else if byte.is_ascii() {
                escaped.push(char::from(byte));
            } else {
                escaped.push(char);
                break;
            }
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_path_cannot_leave_the_directory() {
        for key in ["..", ".", "../../etc/passwd", "/", "a/../b", ".hidden"] {
            let name = file_name(key);
            assert!(!name.contains('/') && !name.starts_with('.'), "{key} became {name}");
            assert_eq!(key_of(&name), ParsedFileName::Key(key.to_owned()));
        }
    }

    #[test]
    fn a_long_key_keeps_its_beginning_and_differs_from_its_neighbour() {
        let (one, two) = ("ä".repeat(500) + "1", "ä".repeat(500) + "2");
        assert!(file_name(&one).starts_with("ää"));
        assert_ne!(file_name(&one), file_name(&two));
        assert_eq!(key_of(&file_name(&one)), ParsedFileName::Hashed);
    }

    #[test]
    fn a_name_we_would_not_give_is_foreign() {
        for name in ["%", "%4", "%zz", "a%2fb", "%41", "lost+found", ".nfs0001", "%+1"] {
            assert_eq!(key_of(name), ParsedFileName::Foreign, "{name}");
        }
    }

    proptest! {
        #[test]
        fn every_key_comes_back(key in "\\PC{1,300}|[a-c/.%~\u{1}]{1,40}") {
            let name = file_name(&key);
            prop_assert!(name.len() <= 255 && !name.contains('/') && !name.starts_with('.') && !name.is_empty());
            match key_of(&name) {
                ParsedFileName::Key(back) => prop_assert_eq!(back, key),
                other => { prop_assert_eq!(other, ParsedFileName::Hashed); prop_assert!(key.len() > 80 / 4) }
            }
        }
    }
}

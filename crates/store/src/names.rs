//! Object keys as file names: any key becomes one flat, safe name, from which the key can be recovered.

use percent_encoding::percent_decode_str;

/// Longest file name. NAME_MAX is 255 bytes on every Linux file system that matters.
const LONGEST: usize = 240;

/// The file name of `key`: every byte except `A-Z a-z 0-9 - _` and non-ASCII as `%XX`. So `a` and `a/b` coexist, and no
/// key can name another directory. `None` if it would be too long or is empty.
pub(crate) fn file_name(key: &str) -> Option<String> {
    let name = beginning(key);
    (!name.is_empty() && name.len() <= LONGEST).then_some(name)
}

/// What the file names of all keys that start with `prefix` start with.
pub(crate) fn beginning(prefix: &str) -> String {
    let mut name = String::with_capacity(prefix.len() + 16);
    for char in prefix.chars() {
        if !char.is_ascii() || char.is_ascii_alphanumeric() || matches!(char, '-' | '_') {
            name.push(char);
        } else {
            name.push_str(&format!("%{:02X}", u32::from(char)));
        }
    }
    name
}

/// The key of a file of this name. `None` if no key has this name.
pub fn key_of(name: &str) -> Option<String> {
    let key = percent_decode_str(name).decode_utf8().ok()?.into_owned();
    // Only the name that we would give it counts, so that no key is listed that cannot be read.
    (file_name(&key).as_deref() == Some(name)).then_some(key)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_path_cannot_leave_the_directory() {
        for key in ["..", ".", "../../etc/passwd", "/", "a/../b", ".hidden", "a\0b"] {
            let name = file_name(key).unwrap();
            assert!(
                !name.contains(['/', '\0']) && !name.starts_with('.'),
                "{key} became {name}"
            );
            assert_eq!(key_of(&name).as_deref(), Some(key));
        }
        assert_eq!(file_name(""), None);
        assert_eq!(file_name(&"a".repeat(241)), None);
    }

    #[test]
    fn a_name_we_would_not_give_has_no_key() {
        for name in [
            "",
            "%",
            "%4",
            "%zz",
            "a%2fb",
            "%41",
            "lost+found",
            ".nfs0001",
            "%+1",
            "a~b",
        ] {
            assert_eq!(key_of(name), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn every_key_comes_back(key in "\\PC{1,60}|[a-c/.%~\u{1}]{1,40}", cut in any::<prop::sample::Index>()) {
            let Some(name) = file_name(&key) else { return Ok(()) };
            prop_assert!(name.len() <= 255 && !name.contains('/') && !name.starts_with('.'));
            let at = cut.index(key.len() + 1);
            if key.is_char_boundary(at) {
                prop_assert!(name.starts_with(&beginning(&key[..at])));
            }
            prop_assert_eq!(key_of(&name), Some(key));
        }
    }
}

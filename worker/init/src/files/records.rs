//! The PAX records of an entry about its file, with the keys of star (`SCHILY.ino`) and libarchive
//! (`LIBARCHIVE.xattr.NAME`, with the name percent-encoded and the value in base64).

use std::borrow::Cow;
use std::io::{self, Read};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use nix::sys::stat::FileStat;
use nix::sys::time::TimeSpec;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use tar::Entry;

const INODE: &str = "SCHILY.ino";
const ACCESSED: &str = "atime";
const MODIFIED: &str = "mtime";
const ATTRIBUTE: &str = "LIBARCHIVE.xattr.";
/// Prefix of the attributes that a function may set. Others belong to the kernel or root.
pub(super) const USER: &str = "user.";
const NANOSECONDS: i128 = 1_000_000_000;

/// Name and value of an extended attribute.
pub(super) type Attribute = (String, Vec<u8>);

/// What identifies a file besides its name, owner and mode.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Records {
    /// `None` in an archive of an earlier platform.
    pub(super) inode: Option<u64>,
    /// As `inode`.
    pub(super) accessed: Option<TimeSpec>,
    /// As `inode`.
    pub(super) modified: Option<TimeSpec>,
    pub(super) attributes: Vec<Attribute>,
}

impl Records {
    pub(super) fn of(found: &FileStat, attributes: Vec<Attribute>) -> Self {
        Self {
            inode: Some(found.st_ino),
            accessed: Some(TimeSpec::new(found.st_atime, found.st_atime_nsec)),
            modified: Some(TimeSpec::new(found.st_mtime, found.st_mtime_nsec)),
            attributes,
        }
    }

    /// Keys and values as they appear in an archive.
    pub(super) fn encode(&self) -> Vec<(Cow<'static, str>, String)> {
        let plain = [
            (INODE, self.inode.map(|inode| inode.to_string())),
            (ACCESSED, self.accessed.map(seconds)),
            (MODIFIED, self.modified.map(seconds)),
        ];
        let plain = plain.into_iter().filter_map(|(key, value)| Some((key.into(), value?)));
        let attributes = self.attributes.iter().map(|(name, value)| {
            let key = format!("{ATTRIBUTE}{}", utf8_percent_encode(name, NON_ALPHANUMERIC));
            (key.into(), STANDARD_NO_PAD.encode(value))
        });
        plain.chain(attributes).collect()
    }

    /// Reads the records of an entry. Unknown keys are ignored.
    ///
    /// # Errors
    /// If a value is not valid for its key.
    pub(super) fn read(entry: &mut Entry<'_, impl Read>) -> io::Result<Self> {
        let mut records = Self::default();
        for record in entry.pax_extensions()?.into_iter().flatten() {
            let record = record?;
            let (Ok(key), Ok(value)) = (record.key(), record.value()) else {
                continue;
            };
            let malformed = || io::Error::other(format!("{key}={value} is malformed"));
            match key {
                INODE => records.inode = Some(value.parse().map_err(|_| malformed())?),
                ACCESSED => records.accessed = Some(time(value).ok_or_else(malformed)?),
                MODIFIED => records.modified = Some(time(value).ok_or_else(malformed)?),
                _ => {
                    if let Some(name) = key.strip_prefix(ATTRIBUTE) {
                        let name = percent_decode_str(name).decode_utf8().map_err(|_| malformed())?;
                        let value = STANDARD_NO_PAD.decode(value).map_err(|_| malformed())?;
                        records.attributes.push((name.into_owned(), value));
                    }
                }
            }
        }
        Ok(records)
    }
}

/// Seconds since 1970, with all nine decimals.
fn seconds(time: TimeSpec) -> String {
    let total = i128::from(time.tv_sec()) * NANOSECONDS + i128::from(time.tv_nsec());
    let (sign, total) = (if total < 0 { "-" } else { "" }, total.unsigned_abs());
    let unit = NANOSECONDS.unsigned_abs();
    format!("{sign}{}.{:09}", total / unit, total % unit)
}

fn time(text: &str) -> Option<TimeSpec> {
    let (sign, rest) = text.strip_prefix('-').map_or((1, text), |rest| (-1, rest));
    let (whole, decimals) = rest.split_once('.').unwrap_or((rest, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(decimals) || decimals.len() > 9 {
        return None;
    }
    let (whole, decimals) = (
        whole.parse::<u64>().ok()?,
        format!("{decimals:0<9}").parse::<u32>().ok()?,
    );
    let total = sign * (i128::from(whole) * NANOSECONDS + i128::from(decimals));
    let whole = i64::try_from(total.div_euclid(NANOSECONDS)).ok()?;
    Some(TimeSpec::new(whole, i64::try_from(total.rem_euclid(NANOSECONDS)).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_kept_to_the_nanosecond_before_1970_too() {
        for (at, text) in [
            (TimeSpec::new(0, 0), "0.000000000"),
            (TimeSpec::new(1_700_000_000, 1), "1700000000.000000001"),
            (TimeSpec::new(-2, 500_000_000), "-1.500000000"),
            (TimeSpec::new(i64::MIN, 0), "-9223372036854775808.000000000"),
        ] {
            assert_eq!(seconds(at), text);
            assert_eq!(time(text), Some(at), "{text}");
        }
        // As other archivers write it.
        assert_eq!(time("12"), Some(TimeSpec::new(12, 0)));
        assert_eq!(time("12.5"), Some(TimeSpec::new(12, 500_000_000)));
        for text in [
            "",
            "-",
            "x",
            "1.",
            "1.+5",
            "--1",
            "9223372036854775808",
            "99999999999999999999999999999999999999",
            "1.0000000000",
            "1e9",
        ] {
            assert_eq!(time(text), None, "{text}");
        }
    }
}

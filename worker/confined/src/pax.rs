//! The records of a pax header: `LENGTH KEY=VALUE` and a newline each, with values of any bytes. The tar crate's reader
//! takes a newline within a value for the record's end.

/// A record that is none.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a pax record is malformed")]
pub(crate) struct Malformed;

/// Key and value.
type Record<'a> = (&'a [u8], &'a [u8]);

/// Keys and values, in order.
pub(crate) struct Records<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let Some((record, rest)) = split(self.0) else {
            self.0 = &[];
            return Some(Err(Malformed));
        };
        self.0 = rest;
        Some(Ok(record))
    }
}

/// Splits off the first record.
fn split(bytes: &[u8]) -> Option<(Record<'_>, &[u8])> {
    let space = bytes.iter().position(|byte| *byte == b' ')?;
    let length: usize = str::from_utf8(&bytes[..space]).ok()?.parse().ok()?;
    let (record, rest) = bytes.split_at_checked(length)?;
    let pair = record.get(space + 1..)?.strip_suffix(b"\n")?;
    let equals = pair.iter().position(|byte| *byte == b'=')?;
    Some(((&pair[..equals], &pair[equals + 1..]), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_may_have_any_bytes_and_a_record_ends_where_its_length_says() {
        let bytes = b"13 a=b\n12 c=\n6 d=e\n";
        let found: Result<Vec<_>, _> = Records(bytes).collect();
        let expected: [Record<'_>; 2] = [(b"a", b"b\n12 c="), (b"d", b"e")];
        assert_eq!(found.unwrap(), expected);
        for bytes in [
            &b"8 a=b\n"[..],
            b"5 a=b\n",
            b"2 a=b\n",
            b"5 ab\n",
            b"x a=b\n",
            b" a=b\n",
            b"\n",
            b"99999999999999999999 a=b\n",
        ] {
            assert_eq!(Records(bytes).last(), Some(Err(Malformed)), "{bytes:?}");
        }
    }
}

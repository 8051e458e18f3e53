//! Edits a protobuf message and leaves all its other bytes unchanged.
//!
//! Source of the encoding: protobuf's own description of its wire format.

use std::ops::Range;

/// A message that is not protobuf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("field at byte {0} is cut off or has no valid tag")]
pub struct WireError(usize);

/// A field as encoded in a message.
struct Field {
    number: u64,
    /// The whole field, tag included.
    whole: Range<usize>,
}

fn varint(message: &[u8], at: &mut usize) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = *message.get(*at)?;
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn fields(message: &[u8]) -> Result<Vec<Field>, WireError> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < message.len() {
        let start = at;
        let field = field(message, &mut at).ok_or(WireError(start))?;
        found.push(field);
    }
    Ok(found)
}

fn field(message: &[u8], at: &mut usize) -> Option<Field> {
    let start = *at;
    let tag = varint(message, at)?;
    match tag & 7 {
        0 => drop(varint(message, at)?),
        1 => *at = at.checked_add(8)?,
        2 => {
            let len = usize::try_from(varint(message, at)?).ok()?;
            *at = at.checked_add(len)?;
        }
        5 => *at = at.checked_add(4)?,
        _ => return None,
    }
    (*at <= message.len() && tag >> 3 != 0).then_some(Field {
        number: tag >> 3,
        whole: start..*at,
    })
}

fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// The message without its fields of this number.
pub(super) fn without(message: &[u8], number: u64) -> Result<Vec<u8>, WireError> {
    let mut out = Vec::with_capacity(message.len());
    for field in fields(message)?.iter().filter(|f| f.number != number) {
        out.extend_from_slice(&message[field.whole.clone()]);
    }
    Ok(out)
}

/// Sets field `number` to this value: in place if it exists, otherwise at the end.
pub(super) fn with_varint(message: &[u8], number: u64, value: u64) -> Result<Vec<u8>, WireError> {
    let mut new = Vec::new();
    push_varint(&mut new, number << 3);
    push_varint(&mut new, value);
    with_field(message, number, &new)
}

/// Sets field `number` to these bytes: in place if it exists, otherwise at the end.
pub(super) fn with_bytes(message: &[u8], number: u64, bytes: &[u8]) -> Result<Vec<u8>, WireError> {
    let mut new = Vec::with_capacity(bytes.len() + 8);
    push_varint(&mut new, number << 3 | 2);
    push_varint(&mut new, bytes.len() as u64);
    new.extend_from_slice(bytes);
    with_field(message, number, &new)
}

fn with_field(message: &[u8], number: u64, new: &[u8]) -> Result<Vec<u8>, WireError> {
    let mut out = Vec::with_capacity(message.len() + new.len());
    let mut written = false;
    for field in fields(message)? {
        if field.number != number {
            out.extend_from_slice(&message[field.whole]);
        } else if !written {
            out.extend_from_slice(new);
            written = true;
        }
    }
    if !written {
        out.extend_from_slice(new);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_edit_changes_its_field_alone_and_back() {
        // 1: 150, 4: 6, an unknown field 100 of four bytes.
        let message = [0x08, 0x96, 0x01, 0x20, 0x06, 0xa5, 0x06, 1, 2, 3, 4];
        let edited = with_varint(&message, 4, 14).unwrap();
        assert_eq!(edited, [0x08, 0x96, 0x01, 0x20, 0x0e, 0xa5, 0x06, 1, 2, 3, 4]);
        let longer = with_bytes(&edited, 6, &[9; 3]).unwrap();
        assert_eq!(without(&with_varint(&longer, 4, 6).unwrap(), 6).unwrap(), message);
        assert!(without(&message[..10], 6).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_edited_or_refused(message in proptest::collection::vec(any::<u8>(), 0..60), value: u64) {
            if let Ok(edited) = with_varint(&message, 9, value) {
                prop_assert_eq!(without(&edited, 9).unwrap(), without(&message, 9).unwrap());
            }
        }
    }
}

//! The framing of an image file: magic numbers, then length-prefixed entries.
//!
//! ```text
//! 0x54564319:u32 kind:u32 { len:u32 message[len] }*     little-endian
//! ```

/// First word of nearly every image.
const COMMON_MAGIC: u32 = 0x5456_4319;

/// Why bytes are not a framed image.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FramingError {
    /// The magic numbers are different.
    #[error("magic numbers {found:#x?} instead of {expected:#x}")]
    Magic {
        /// The first two words, if there are as many.
        found: Option<(u32, u32)>,
        /// The expected second word.
        expected: u32,
    },
    /// An entry extends beyond the end.
    #[error("entry {0} is cut off")]
    Cut(usize),
}

/// The messages of an image that starts with its own magic number only.
pub(super) fn bare_entries(bytes: &[u8], magic: u32) -> Result<Vec<&[u8]>, FramingError> {
    match word(bytes) {
        Some((found, rest)) if found == magic => messages(rest),
        found => Err(FramingError::Magic {
            found: found.map(|(found, _)| (found, 0)),
            expected: magic,
        }),
    }
}

fn word(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<4>()?;
    Some((u32::from_le_bytes(*head), rest))
}

/// The messages of an image of kind `magic`, in order.
pub(super) fn entries(bytes: &[u8], magic: u32) -> Result<Vec<&[u8]>, FramingError> {
    let head = word(bytes).and_then(|(common, rest)| word(rest).map(|(kind, rest)| ((common, kind), rest)));
    let Some((_, rest)) = head.filter(|(found, _)| *found == (COMMON_MAGIC, magic)) else {
        return Err(FramingError::Magic {
            found: head.map(|(found, _)| found),
            expected: magic,
        });
    };
    messages(rest)
}

fn messages(mut rest: &[u8]) -> Result<Vec<&[u8]>, FramingError> {
    let mut found = Vec::new();
    while !rest.is_empty() {
        let cut = FramingError::Cut(found.len());
        let Some((len, after)) = word(rest) else {
            return Err(cut);
        };
        let Some((message, after)) = usize::try_from(len).ok().and_then(|len| after.split_at_checked(len)) else {
            return Err(cut);
        };
        found.push(message);
        rest = after;
    }
    Ok(found)
}

/// Encodes an image of kind `magic`. Messages are at most 4 GiB, because they come from such an image.
pub(super) fn image<'a>(magic: u32, messages: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut out = COMMON_MAGIC.to_le_bytes().to_vec();
    out.extend_from_slice(&bare_image(magic, messages));
    out
}

/// Like `image`, without the common magic number.
pub(super) fn bare_image<'a>(magic: u32, messages: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut out = magic.to_le_bytes().to_vec();
    for message in messages {
        out.extend_from_slice(&u32::try_from(message.len()).unwrap_or(u32::MAX).to_le_bytes());
        out.extend_from_slice(message);
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn messages_come_back_and_a_cut_image_is_an_error(
            messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..8),
            cut: prop::sample::Index,
        ) {
            let bytes = image(7, messages.iter().map(Vec::as_slice));
            prop_assert_eq!(entries(&bytes, 7).unwrap(), messages.iter().map(Vec::as_slice).collect::<Vec<_>>());
            prop_assert!(entries(&bytes, 8).is_err());
            let cut = cut.index(bytes.len());
            // A cut between two entries leaves a shorter image. Any other cut is detected.
            if let Ok(fewer) = entries(&bytes[..cut], 7) {
                prop_assert!(fewer.len() < messages.len());
            }
        }

        #[test]
        fn any_bytes_are_taken_or_refused_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let mut framed = image(7, std::iter::empty());
            framed.extend_from_slice(&bytes);
            drop(entries(&framed, 7));
            drop(entries(&bytes, 7));
        }
    }
}

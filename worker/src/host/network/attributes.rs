//! Attributes of netlink messages, in sequence or nested: length, kind, value, padding to four bytes.

/// `NLA_F_NESTED`.
const NESTED: u16 = 1 << 15;

/// A list of attributes as bytes.
#[derive(Default)]
pub(super) struct Attributes(Vec<u8>);

impl Attributes {
    #[must_use]
    pub(super) fn bytes(mut self, kind: u16, value: &[u8]) -> Self {
        let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// Appends a number in network byte order, which the packet filter uses for all of its own numbers.
    #[must_use]
    pub(super) fn number(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// Appends text, with a zero at its end.
    #[must_use]
    pub(super) fn text(self, kind: u16, value: &str) -> Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.bytes(kind, &bytes)
    }

    /// Appends an attribute that contains others.
    #[must_use]
    pub(super) fn nested(self, kind: u16, value: &Self) -> Self {
        self.bytes(kind | NESTED, &value.0)
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_their_lengths_are_not() {
        let inner = Attributes::default().text(1, "lo").number(2, 7);
        assert_eq!(inner.0, [7, 0, 1, 0, b'l', b'o', 0, 0, 8, 0, 2, 0, 0, 0, 0, 7]);
        let outer = Attributes::default().nested(3, &inner);
        assert_eq!(outer.0[..4], [20, 0, 3, 0x80]);
    }
}

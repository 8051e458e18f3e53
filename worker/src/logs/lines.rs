//! Splits a pipe's bytes into lines of text. Pure.

/// Splits a stream of bytes into lines of bounded length.
#[derive(Debug)]
pub(super) struct LineSplitter {
    pending: Vec<u8>,
    line_bytes: usize,
}

impl LineSplitter {
    pub(super) fn new(line_bytes: usize) -> Self {
        // There is room for any one character, so that a piece is never empty.
        Self {
            pending: Vec::new(),
            line_bytes: line_bytes.max(4),
        }
    }

    /// Takes more of the stream. Passes on every line that is now complete, without its end, each with at most
    /// `line_bytes`.
    pub(super) fn push(&mut self, mut bytes: &[u8], mut line: impl FnMut(String)) {
        while let Some(end) = bytes.iter().position(|b| *b == b'\n') {
            self.pending.extend_from_slice(&bytes[..end]);
            self.give(&mut line);
            bytes = &bytes[end + 1..];
        }
        self.pending.extend_from_slice(bytes);
        while self.pending.len() > self.line_bytes {
            let rest = self
                .pending
                .split_off(character_boundary(&self.pending, self.line_bytes));
            self.give(&mut line);
            self.pending = rest;
        }
    }

    /// Ends the stream and passes on what is left, if anything.
    pub(super) fn finish(&mut self, mut line: impl FnMut(String)) {
        if !self.pending.is_empty() {
            self.give(&mut line);
        }
    }

    fn give(&mut self, line: &mut impl FnMut(String)) {
        if self.pending.last() == Some(&b'\r') {
            self.pending.pop();
        }
        let text = String::from_utf8_lossy(&self.pending);
        let mut rest: &str = &text;
        // Each invalid byte has become three, so even a short line may have to be cut here.
        while rest.len() > self.line_bytes {
            let (piece, more) = rest.split_at(rest.floor_char_boundary(self.line_bytes));
            line(piece.to_owned());
            rest = more;
        }
        line(rest.to_owned());
        self.pending.clear();
    }
}

/// A part of a stream, cut so that only the wanted lines need to be built.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Cut<'a> {
    pub(super) head: &'a [u8],
    /// Number of whole lines after them that nobody wants.
    pub(super) skipped: u64,
    /// The last lines, and what follows the last line's end.
    pub(super) tail: &'a [u8],
}

/// Cuts out the lines between the first `first` and the last `last` of the line ends in `bytes`.
pub(super) fn cut(bytes: &[u8], first: usize, last: usize) -> Cut<'_> {
    let ends = bytes.iter().filter(|b| **b == b'\n').count();
    let skipped = ends.saturating_sub(first.saturating_add(last));
    if skipped == 0 {
        return Cut {
            head: bytes,
            skipped: 0,
            tail: &[],
        };
    }
    let after = |lines: usize| {
        let mut ends = bytes.iter().enumerate().filter(|(_, b)| **b == b'\n');
        lines
            .checked_sub(1)
            .and_then(|n| ends.nth(n))
            .map_or(0, |(at, _)| at + 1)
    };
    Cut {
        head: &bytes[..after(first)],
        skipped: skipped as u64,
        tail: &bytes[after(first + skipped)..],
    }
}

/// Returns the last position at or before `at` where a character begins, as far as that can be said of bytes that may
/// not be UTF-8.
fn character_boundary(bytes: &[u8], at: usize) -> usize {
    let continues = |i: &usize| bytes[*i] & 0b1100_0000 == 0b1000_0000;
    (at.saturating_sub(3)..=at).rev().find(|i| !continues(i)).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn split(line_bytes: usize, chunks: &[&[u8]]) -> Vec<String> {
        let mut splitter = LineSplitter::new(line_bytes);
        let mut lines = Vec::new();
        for chunk in chunks {
            splitter.push(chunk, |l| lines.push(l));
        }
        splitter.finish(|l| lines.push(l));
        lines
    }

    #[test]
    fn what_lies_between_the_first_and_the_last_lines_is_only_counted() {
        let cut = |first, last| super::cut(b"a\nb\nc\nd\ne", first, last);
        let parts = |head: &'static str, skipped, tail: &'static str| Cut {
            head: head.as_bytes(),
            skipped,
            tail: tail.as_bytes(),
        };
        assert_eq!(cut(1, 1), parts("a\n", 2, "d\ne"));
        assert_eq!(cut(0, 2), parts("", 2, "c\nd\ne"));
        assert_eq!(cut(2, 0), parts("a\nb\n", 2, "e"));
        assert_eq!(cut(2, 2), parts("a\nb\nc\nd\ne", 0, ""));
        assert_eq!(cut(usize::MAX, 1), parts("a\nb\nc\nd\ne", 0, ""));
    }

    #[test]
    fn lines_come_whole_however_the_bytes_arrive() {
        assert_eq!(
            split(100, &[b"on", b"e\ntw", b"o\r\n", b"\nlast"]),
            ["one", "two", "", "last"]
        );
        assert_eq!(split(100, &[]), Vec::<String>::new());
        assert_eq!(split(100, &[b"\n"]), [""]);
    }

    #[test]
    fn a_long_line_is_cut_between_characters() {
        assert_eq!(split(4, &[b"abcdefghij\nk"]), ["abcd", "efgh", "ij", "k"]);
        assert_eq!(split(4, &["aäöü".as_bytes()]), ["aä", "öü"]);
        assert_eq!(split(4, &["äöü\n".as_bytes()]), ["äö", "ü"]);
    }

    #[test]
    fn invalid_utf8_is_replaced_and_stays_within_the_limit() {
        assert_eq!(split(100, &[b"a\xffb\n"]), ["a\u{fffd}b"]);
        assert_eq!(split(6, &[b"\xff\xff\xff\n"]), ["\u{fffd}\u{fffd}", "\u{fffd}"]);
    }

    proptest! {
        #[test]
        fn no_byte_is_lost_and_no_line_is_too_long(
            text in "[a-zé\n]{0,200}", chunk in 1_usize..20, limit in 4_usize..40,
        ) {
            let chunks: Vec<&[u8]> = text.as_bytes().chunks(chunk).collect();
            let lines = split(limit, &chunks);
            prop_assert!(lines.iter().all(|l| l.len() <= limit));
            prop_assert_eq!(lines.concat(), text.replace('\n', ""));
        }
    }
}

//! Defines a question (RFC 1035, 4.1): the only kind of message that is forwarded for a function. Pure.

/// Size of a message's header, in bytes.
pub(super) const HEADER: usize = 12;
/// Response codes.
pub(super) const SERVER_FAILURE: u8 = 2;
pub(super) const REFUSED: u8 = 5;

/// Maximum length of a name, and of one label in it, in bytes.
const NAME_MAX: usize = 255;
const LABEL_MAX: u8 = 63;
/// The class of the Internet.
const IN: u16 = 1;
/// Types that request a whole zone: IXFR and AXFR.
const OF_A_ZONE: [u16; 2] = [251, 252];

#[derive(Debug, PartialEq, Eq)]
pub(super) enum MessageKind {
    /// One question about the Internet class. It may have one additional record, by which a client announces its
    /// capabilities (EDNS).
    Question,
    /// A request for something else, or in another form.
    Refused,
    /// Not a message, or an answer: answers to it would be answered again.
    Nothing,
}

/// Judges a message by its header and its question. A resolver judges the rest.
pub(super) fn judge(message: &[u8]) -> MessageKind {
    let Some((header, rest)) = message.split_first_chunk::<HEADER>() else {
        return MessageKind::Nothing;
    };
    let is_answer = header[2] & 0x80 != 0;
    if is_answer {
        return MessageKind::Nothing;
    }
    let opcode = header[2] >> 3 & 0x0f;
    let count = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let (questions, answers, authorities, additional) = (count(4), count(6), count(8), count(10));
    let has_form = opcode == 0 && questions == 1 && answers == 0 && authorities == 0 && additional <= 1;
    match asked(rest) {
        Some((kind, IN)) if has_form && !OF_A_ZONE.contains(&kind) => MessageKind::Question,
        _ => MessageKind::Refused,
    }
}

/// Returns the type and class of a question, which follow its name. The name must be complete: nothing precedes it that
/// it could point to.
fn asked(question: &[u8]) -> Option<(u16, u16)> {
    let mut at = 0;
    loop {
        let label = *question.get(at)?;
        at += 1 + usize::from(label);
        match label {
            0 => break,
            1..=LABEL_MAX if at < NAME_MAX => {}
            _ => return None,
        }
    }
    let number = |at: usize| Some(u16::from_be_bytes([*question.get(at)?, *question.get(at + 1)?]));
    Some((number(at)?, number(at + 2)?))
}

/// Turns a message into its own answer with only this code. The message has at least a header.
pub(super) fn answered(mut message: Vec<u8>, code: u8) -> Vec<u8> {
    if let Some(flags) = message.get_mut(2) {
        *flags |= 0x80;
    }
    if let Some(flags) = message.get_mut(3) {
        *flags = *flags & 0xf0 | code;
    }
    message
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A question for `a.lan`.
    pub(in super::super) fn question(kind: u16, class: u16) -> Vec<u8> {
        let mut message = vec![7, 8, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, b'a', 3, b'l', b'a', b'n', 0];
        message.extend(kind.to_be_bytes());
        message.extend(class.to_be_bytes());
        message
    }

    fn changed(at: usize, byte: u8) -> MessageKind {
        let mut message = question(1, 1);
        message[at] = byte;
        judge(&message)
    }

    #[test]
    fn questions_pass_with_and_without_edns() {
        for kind in [1, 2, 5, 12, 15, 16, 28, 33, 65, 255] {
            assert_eq!(judge(&question(kind, 1)), MessageKind::Question, "type {kind}");
        }
        let mut edns = question(28, 1);
        edns[11] = 1;
        edns.extend([0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
        assert_eq!(judge(&edns), MessageKind::Question);
        // For the root.
        assert_eq!(
            judge(&[7, 8, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1]),
            MessageKind::Question
        );
    }

    #[test]
    fn transfers_of_zones_other_classes_and_other_requests_are_refused() {
        for (kind, class) in [(251, 1), (252, 1), (1, 3), (16, 4), (1, 255), (6, 254)] {
            assert_eq!(judge(&question(kind, class)), MessageKind::Refused, "{kind} {class}");
        }
        // Inverse, status, notify, update.
        for opcode in [1, 2, 4, 5, 15] {
            assert_eq!(changed(2, opcode << 3), MessageKind::Refused, "opcode {opcode}");
        }
        // Two questions, none, an answer, an authority, two additional records.
        for (at, byte) in [(5, 2), (5, 0), (4, 1), (7, 1), (9, 1), (11, 2)] {
            assert_eq!(changed(at, byte), MessageKind::Refused, "byte {at}");
        }
    }

    #[test]
    fn an_answer_and_what_is_no_message_are_dropped() {
        assert_eq!(changed(2, 0x81), MessageKind::Nothing);
        assert_eq!(judge(&question(1, 1)[..HEADER - 1]), MessageKind::Nothing);
    }

    #[test]
    fn a_name_is_whole_and_short_enough() {
        for cut in HEADER..question(1, 1).len() {
            assert_eq!(judge(&question(1, 1)[..cut]), MessageKind::Refused, "{cut}");
        }
        // A pointer, and a reserved kind of label.
        for label in [0xc0, 0x40, 0x80] {
            assert_eq!(changed(12, label), MessageKind::Refused, "{label}");
        }
        let named = |labels: usize| {
            let mut message = question(1, 1)[..HEADER].to_vec();
            for _ in 0..labels {
                message.push(62);
                message.extend([b'x'; 62]);
            }
            message.extend([0, 0, 1, 0, 1]);
            judge(&message)
        };
        assert_eq!((named(4), named(5)), (MessageKind::Question, MessageKind::Refused));
    }

    proptest! {
        #[test]
        fn nothing_that_comes_ends_the_judge(message in proptest::collection::vec(any::<u8>(), 0..600)) {
            judge(&message);
        }

        #[test]
        fn what_passes_is_one_question_of_the_internet(mut message in proptest::collection::vec(any::<u8>(), 12..60)) {
            // These values rarely occur by chance.
            message[2] &= 0x7f;
            message[5] &= 1;
            if judge(&message) == MessageKind::Question {
                prop_assert_eq!((message[2] & 0xf8, message[4], message[5]), (0, 0, 1));
            }
        }
    }
}

//! Cuts a batch that may be too large to be passed on.

use std::collections::VecDeque;

use crate::queue::Message;

/// Maximum number of bytes of the messages of a part. A gateway takes 32 MiB unless its operator says otherwise, and an
/// event takes more than its message: base64 a third, JSON within JSON up to twice as much.
const BYTES_MAX: usize = 8 << 20;
/// What each message counts for besides: the attributes of its event.
const BYTES_EACH: usize = 512;

/// The messages in order, in parts. A message that is larger than a part may be is one of its own.
pub(super) fn of(messages: Vec<Message>) -> VecDeque<Vec<Message>> {
    let mut parts = VecDeque::new();
    let (mut part, mut bytes) = (Vec::new(), 0);
    for message in messages {
        let size = message.body.len() + BYTES_EACH;
        if bytes + size > BYTES_MAX && !part.is_empty() {
            parts.push_back(std::mem::take(&mut part));
            bytes = 0;
        }
        bytes += size;
        part.push(message);
    }
    parts.push_back(part);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::message;

    #[test]
    fn no_part_is_too_large_and_no_message_is_lost() {
        let sizes = [9 << 20, 1, 5 << 20, 2 << 20, 3 << 20, 0, 1];
        let messages = sizes.into_iter().enumerate().map(|(n, size)| Message {
            body: vec![0; size].into(),
            ..message(&n.to_string(), b"")
        });
        let parts = of(messages.collect());
        let ids: Vec<Vec<&str>> = parts
            .iter()
            .map(|part| part.iter().map(|message| message.id.as_str()).collect())
            .collect();
        assert_eq!(ids, [vec!["0"], vec!["1", "2", "3"], vec!["4", "5", "6"]]);
    }
}

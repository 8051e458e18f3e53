//! Names of functions, which the name server answers itself: each stands for the router, where calls of functions are
//! taken. None of these questions reaches a resolver. Pure.

use std::net::Ipv4Addr;

use super::question::{HEADER, answered};

/// The domain of functions, in the form of a question.
const DOMAIN: &[&str] = &["fn", "internal"];
const NO_SUCH_NAME: u8 = 3;
const OK: u8 = 0;
/// How long an answer may be kept, in seconds. It never changes.
const KEPT_S: u32 = 60;
const A: u16 = 1;
const ANY: u16 = 255;
const IN: u16 = 1;

/// Returns the answer to a question, a message that was judged to be one, if it is for a name of a function.
pub(super) fn answer(question: &[u8], address: Ipv4Addr) -> Option<Vec<u8>> {
    let (labels, end) = name(question)?;
    let before = labels.len().checked_sub(DOMAIN.len())?;
    let is_ours = labels[before..]
        .iter()
        .zip(DOMAIN)
        .all(|(label, own)| label.eq_ignore_ascii_case(own.as_bytes()));
    if !is_ours {
        return None;
    }
    let kind = u16::from_be_bytes([*question.get(end)?, *question.get(end + 1)?]);
    let mut out = question.get(..end + 4)?.to_vec();
    // One question, and so far nothing else; recursion is available.
    out[3] = 0x80;
    out[4..HEADER].copy_from_slice(&[0, 1, 0, 0, 0, 0, 0, 0]);
    let exists = before <= 1;
    if exists && matches!(kind, A | ANY) {
        out[7] = 1;
        // The name is that of the question.
        out.extend([0xc0, u8::try_from(HEADER).ok()?]);
        out.extend(A.to_be_bytes());
        out.extend(IN.to_be_bytes());
        out.extend(KEPT_S.to_be_bytes());
        out.extend([0, 4]);
        out.extend(address.octets());
    }
    Some(answered(out, if exists { OK } else { NO_SUCH_NAME }))
}

/// Returns the labels of a question's name, and where the name ends.
fn name(message: &[u8]) -> Option<(Vec<&[u8]>, usize)> {
    let (mut labels, mut at) = (Vec::new(), HEADER);
    loop {
        let length = usize::from(*message.get(at)?);
        at += 1;
        if length == 0 {
            return Some((labels, at));
        }
        labels.push(message.get(at..at + length)?);
        at += length;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ROUTER: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);

    fn question(name: &str, kind: u16) -> Vec<u8> {
        let mut message = vec![7, 8, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.').filter(|label| !label.is_empty()) {
            message.push(u8::try_from(label.len()).unwrap());
            message.extend(label.as_bytes());
        }
        message.push(0);
        message.extend(kind.to_be_bytes());
        message.extend(IN.to_be_bytes());
        message
    }

    #[test]
    fn functions_are_at_the_router() {
        for name in ["hello.fn.internal", "HELLO.Fn.Internal", "fn.internal"] {
            let asked = question(name, A);
            let answer = answer(&asked, ROUTER).unwrap();
            assert_eq!(answer[..8], [7, 8, 0x81, 0x80, 0, 1, 0, 1], "{name}");
            assert_eq!(answer[HEADER..asked.len()], asked[HEADER..]);
            assert_eq!(answer[answer.len() - 4..], [198, 18, 0, 1]);
        }
        // There is no IPv6 address, and the name exists.
        let answer = answer(&question("hello.fn.internal", 28), ROUTER).unwrap();
        assert_eq!(answer[..8], [7, 8, 0x81, 0x80, 0, 1, 0, 0]);
    }

    #[test]
    fn names_of_other_namespaces_do_not_exist_and_no_resolver_is_asked_for_them() {
        let answer = answer(&question("hello.team.fn.internal", A), ROUTER).unwrap();
        assert_eq!(answer[..8], [7, 8, 0x81, 0x83, 0, 1, 0, 0]);
    }

    #[test]
    fn other_names_are_the_resolvers() {
        for name in [
            "",
            "internal",
            "hello.internal",
            "fn.internal.example.com",
            "xfn.internal",
            "a.fnx.internal",
        ] {
            assert_eq!(answer(&question(name, A), ROUTER), None, "{name}");
        }
    }

    #[test]
    fn what_a_client_adds_is_left_out() {
        let mut asked = question("hello.fn.internal", A);
        asked[11] = 1;
        asked.extend([0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
        let answer = answer(&asked, ROUTER).unwrap();
        assert_eq!(answer[10..HEADER], [0, 0]);
        assert_eq!(answer.len(), question("hello.fn.internal", A).len() + 16);
    }

    proptest! {
        #[test]
        fn nothing_that_comes_ends_it(message in proptest::collection::vec(any::<u8>(), 0..600)) {
            answer(&message, ROUTER);
        }
    }
}

//! How the other side of HTTP/2 ended a stream (RFC 9113, 7 and 8.7).

use std::error::Error;

use h2::Reason;

/// What the end of a stream says of its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reset {
    /// Nothing of it was processed: it may be sent again, whatever it is.
    Refused,
    /// It is not wanted any more.
    Cancelled,
    /// Too much is asked for.
    Excessive,
    /// Any other reason.
    Broken,
}

impl Reset {
    /// Looks for it among an error's causes. `None` if something else is wrong.
    pub fn of(error: &(dyn Error + 'static)) -> Option<Self> {
        let causes = std::iter::successors(Some(error), |error| (*error).source());
        let ended = causes.filter_map(|cause| cause.downcast_ref::<h2::Error>()).next()?;
        // The last stream that is processed is named with a connection's end, and only later ones get to know of it so.
        if ended.is_remote() && (ended.is_go_away() || ended.reason() == Some(Reason::REFUSED_STREAM)) {
            return Some(Self::Refused);
        }
        match ended.reason()? {
            Reason::CANCEL => Some(Self::Cancelled),
            Reason::ENHANCE_YOUR_CALM => Some(Self::Excessive),
            _ => Some(Self::Broken),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("behind another")]
    struct Behind(#[source] h2::Error);

    #[test]
    fn a_reset_is_found_behind_other_errors_and_only_the_other_side_refuses() {
        let of = |reason: Reason| Reset::of(&Behind(reason.into()));
        assert_eq!(of(Reason::CANCEL), Some(Reset::Cancelled));
        assert_eq!(of(Reason::ENHANCE_YOUR_CALM), Some(Reset::Excessive));
        assert_eq!(of(Reason::INTERNAL_ERROR), Some(Reset::Broken));
        assert_eq!(of(Reason::REFUSED_STREAM), Some(Reset::Broken), "not by the other side");
        assert_eq!(Reset::of(&std::io::Error::other("no stream's")), None);
    }
}

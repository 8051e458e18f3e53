//! Which builds understand each other. Each call between roles names the versions of the interfaces that its caller
//! understands, as `OLDEST-NEWEST`. It is answered if the callee understands one of them too. Messages only gain
//! optional fields within a version. A change that needs more raises [`Versions::OWN`]'s newest, and its oldest once
//! builds before the change are no longer answered.

use std::fmt;
use std::str::FromStr;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::Role;
use crate::error::{ApiError, ErrorCode};
use crate::headers::INTERFACE_VERSIONS;

/// A range of versions that a build understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    oldest: u32,
    newest: u32,
}

impl Versions {
    /// The versions that this build understands.
    pub const OWN: Self = Self { oldest: 0, newest: 1 };
    /// Those of builds that name none, since they are older than the header.
    const UNNAMED: Self = Self { oldest: 0, newest: 0 };

    fn overlaps(self, other: Self) -> bool {
        self.oldest <= other.newest && other.oldest <= self.newest
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.oldest, self.newest)
    }
}

impl FromStr for Versions {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (oldest, newest) = text.split_once('-').ok_or(())?;
        let number = |text: &str| text.parse().map_err(drop);
        Ok(Self {
            oldest: number(oldest)?,
            newest: number(newest)?,
        })
    }
}

/// The header that names this build's versions.
pub fn header() -> (HeaderName, HeaderValue) {
    let name = HeaderName::from_static(INTERFACE_VERSIONS);
    (name, HeaderValue::from_static(OWN_TEXT))
}

/// [`Versions::OWN`] as text, so that no call has to print it.
const OWN_TEXT: &str = "0-1";

/// Refuses a caller that understands none of this build's versions. `callee` is this build's role.
///
/// # Errors
/// `version_mismatch`, which names the versions of both.
pub fn check(sent: &HeaderMap, callee: Role) -> Result<(), ApiError> {
    check_between(sent, callee, Versions::OWN)
}

fn check_between(sent: &HeaderMap, callee: Role, own: Versions) -> Result<(), ApiError> {
    let named = match sent.get(INTERFACE_VERSIONS) {
        None => Ok(Versions::UNNAMED),
        Some(text) => text.to_str().map_err(drop).and_then(str::parse),
    };
    let named = named.map_err(|()| {
        let message = format!("the header {INTERFACE_VERSIONS} is no range of versions: send OLDEST-NEWEST");
        ApiError::new(ErrorCode::BadRequest, message)
    })?;
    if own.overlaps(named) {
        return Ok(());
    }
    let message = format!(
        "this {callee} understands versions {own} of the interface between roles, and its caller {named}: install the \
         same release on both"
    );
    Err(ApiError::new(ErrorCode::VersionMismatch, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn naming(text: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(
            HeaderName::from_static(INTERFACE_VERSIONS),
            HeaderValue::from_static(text),
        )])
    }

    #[test]
    fn the_header_names_the_own_versions() {
        assert_eq!(header().1.to_str().unwrap(), Versions::OWN.to_string());
        assert_eq!(OWN_TEXT.parse(), Ok(Versions::OWN));
    }

    #[test]
    fn a_caller_is_answered_if_one_version_is_understood_by_both() {
        let own = Versions { oldest: 2, newest: 4 };
        for (text, is_answered) in [
            ("0-1", false),
            ("1-2", true),
            ("3-3", true),
            ("4-9", true),
            ("5-9", false),
        ] {
            let answered = check_between(&naming(text), Role::Scheduler, own);
            assert_eq!(answered.is_ok(), is_answered, "{text}");
            if let Err(error) = answered {
                assert_eq!(error.code, ErrorCode::VersionMismatch);
                assert!(error.message.contains("2-4") && error.message.contains(text), "{error}");
            }
        }
    }

    #[test]
    fn a_build_that_names_no_version_is_answered_as_long_as_version_0_is() {
        check(&HeaderMap::new(), Role::Worker).unwrap();
        let later = Versions { oldest: 1, newest: 2 };
        let refused = check_between(&HeaderMap::new(), Role::Worker, later).unwrap_err();
        assert_eq!(refused.code, ErrorCode::VersionMismatch);
    }

    #[test]
    fn what_is_no_range_is_a_bad_request() {
        for text in ["", "1", "a-b", "1-2-3", "-1"] {
            let refused = check(&naming(text), Role::Worker).unwrap_err();
            assert_eq!(refused.code, ErrorCode::BadRequest, "{text}");
        }
    }
}

//! What a relay knows of gRPC: which requests are calls, and how long their clients wait (gRPC over HTTP/2, Requests).

use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue};

const TIMEOUT: &str = "grpc-timeout";
const MEDIA_TYPE: &str = "application/grpc";
/// Largest number that a timeout may have: eight digits.
const VALUE_MAX: u128 = 99_999_999;

/// Whether a request, or a response, is a gRPC call's. Not that of gRPC-Web, whose trailers are in the body.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.and_then(|kind| kind.get(..MEDIA_TYPE.len()).zip(kind.get(MEDIA_TYPE.len()..)))
        .is_some_and(|(kind, more)| {
            kind.eq_ignore_ascii_case(MEDIA_TYPE) && (more.is_empty() || more.starts_with(['+', ';']))
        })
}

/// How long a call's client waits, from its beginning. `None` if it does not say, or not in the form that it should.
pub fn call_timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(TIMEOUT)?.to_str().ok()?;
    let (value, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let is_number = (1..=8).contains(&value.len()) && value.bytes().all(|b| b.is_ascii_digit());
    let value: u64 = value.parse().ok().filter(|_| is_number)?;
    match unit {
        "H" => Some(Duration::from_secs(value * 3600)),
        "M" => Some(Duration::from_secs(value * 60)),
        "S" => Some(Duration::from_secs(value)),
        "m" => Some(Duration::from_millis(value)),
        "u" => Some(Duration::from_micros(value)),
        "n" => Some(Duration::from_nanos(value)),
        _ => None,
    }
}

/// Says how much of a call's timeout is left after it has waited for `waited`.
pub fn shorten_call_timeout(headers: &mut HeaderMap, waited: Duration) {
    let Some(left) = call_timeout(headers).map(|timeout| timeout.saturating_sub(waited)) else {
        return;
    };
    let units = [
        (left.as_micros(), 'u'),
        (left.as_millis(), 'm'),
        (left.as_secs().into(), 'S'),
    ];
    let text = units.iter().find(|(value, _)| *value <= VALUE_MAX);
    // What does not fit is left as it is: more than three years.
    if let Some((value, unit)) = text
        && let Ok(text) = HeaderValue::from_str(&format!("{value}{unit}"))
    {
        headers.insert(TIMEOUT, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &'static str, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name.parse().unwrap(), HeaderValue::from_static(value))])
    }

    #[test]
    fn a_call_is_known_by_its_type() {
        for kind in ["application/grpc", "application/grpc+proto", "Application/gRPC; x=y"] {
            assert!(is_grpc(&with("content-type", kind)), "{kind}");
        }
        for kind in ["application/grpc-web", "application/json", "application/grp", ""] {
            assert!(!is_grpc(&with("content-type", kind)), "{kind}");
        }
        assert!(!is_grpc(&HeaderMap::new()));
    }

    #[test]
    fn a_timeout_has_at_most_eight_digits_and_a_unit() {
        for (text, ms) in [
            ("1H", 3_600_000),
            ("2M", 120_000),
            ("30S", 30_000),
            ("99999999m", 99_999_999),
            ("5000u", 5),
        ] {
            assert_eq!(
                call_timeout(&with(TIMEOUT, text)),
                Some(Duration::from_millis(ms)),
                "{text}"
            );
        }
        for text in ["", "S", "1", "1s", "-1S", "123456789m", "1.5S"] {
            assert_eq!(call_timeout(&with(TIMEOUT, text)), None, "{text}");
        }
    }

    #[test]
    fn what_was_waited_is_taken_off() {
        let after = |text, waited_ms| {
            let mut headers = with(TIMEOUT, text);
            shorten_call_timeout(&mut headers, Duration::from_millis(waited_ms));
            headers[TIMEOUT].to_str().unwrap().to_owned()
        };
        assert_eq!(after("2S", 500), "1500000u");
        assert_eq!(after("1H", 1_000), "3599000m");
        assert_eq!(after("99999999S", 0), "99999999S");
        assert_eq!(after("100m", 200), "0u");
        assert_eq!(after("later", 200), "later");
    }
}

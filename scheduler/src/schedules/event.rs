//! What a function gets of a run: a CloudEvent in binary mode, as an asynchronous invocation.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, UNIX_EPOCH};

use rekindle_wire::FunctionId;
use rekindle_wire::asynchronous::{Encoded, Headers, InvocationKind, NewCall, StoredRequest};
use rekindle_wire::schedule::Schedule;
use uuid::Uuid;

/// The type of these events.
const TYPE: &str = "rekindle.schedule.due";
/// The owner of the calls' idempotency keys: no client is called that.
const OWNER: &str = "platform schedules";

/// The call of the run that was due then. The same run gives the same key, so that it is run once, though two leaders
/// fire it.
pub(super) fn call(function: &FunctionId, schedule: &Schedule, due_unix_ms: i64) -> NewCall {
    let time = rfc3339(due_unix_ms);
    let key = format!("{}/{time}", schedule.name);
    let mut call = new(function, schedule, &time, &time);
    (call.idempotency_key, call.owner) = (Some(key), Some(OWNER.to_owned()));
    call
}

/// The call of a run besides those that are due.
pub(super) fn call_by_hand(function: &FunctionId, schedule: &Schedule, now_unix_ms: i64) -> NewCall {
    new(function, schedule, &rfc3339(now_unix_ms), &Uuid::new_v4().to_string())
}

fn new(function: &FunctionId, schedule: &Schedule, time: &str, id: &str) -> NewCall {
    let name = &schedule.name;
    let mut headers = vec![
        ("ce-specversion".to_owned(), "1.0".to_owned()),
        ("ce-type".to_owned(), TYPE.to_owned()),
        (
            "ce-source".to_owned(),
            format!("/functions/{function}/schedules/{name}"),
        ),
        ("ce-id".to_owned(), id.to_owned()),
        ("ce-time".to_owned(), time.to_owned()),
        ("ce-subject".to_owned(), name.to_string()),
    ];
    let body = schedule.payload.as_ref().map(ToString::to_string);
    if body.is_some() {
        headers.push(("content-type".to_owned(), "application/json".to_owned()));
    }
    NewCall {
        id: None,
        function: function.clone(),
        request: StoredRequest {
            method: "POST".to_owned(),
            path: "/".to_owned(),
            invocation: InvocationKind::Http,
            headers: Headers(headers),
            request_id: Uuid::new_v4().simple().to_string(),
            peer: IpAddr::V4(Ipv4Addr::LOCALHOST),
        },
        body: Encoded(body.unwrap_or_default().into()),
        idempotency_key: None,
        owner: None,
        callback: None,
    }
}

/// The time in UTC, to the second.
fn rfc3339(unix_ms: i64) -> String {
    let since = Duration::from_millis(u64::try_from(unix_ms).unwrap_or(0));
    humantime::format_rfc3339_seconds(UNIX_EPOCH + since).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_a_cloud_event_with_the_time_at_which_it_was_due() {
        let schedule = Schedule {
            name: "nightly".parse().unwrap(),
            cron: "@daily".to_owned(),
            timezone: "UTC".to_owned(),
            payload: Some(serde_json::json!({"job": "clean"})),
            overlap: Default::default(),
            missed: Default::default(),
        };
        let function = "hello.team".parse().unwrap();
        let due = 1_795_737_600_000;
        let call = call(&function, &schedule, due);
        let header = |name: &str| {
            let mut all = call.request.headers.0.iter();
            all.find(|(n, _)| n == name).map(|(_, value)| value.as_str())
        };
        assert_eq!(header("ce-specversion"), Some("1.0"));
        assert_eq!(header("ce-type"), Some(TYPE));
        assert_eq!(header("ce-source"), Some("/functions/hello.team/schedules/nightly"));
        assert_eq!(header("ce-time"), Some("2026-11-27T00:00:00Z"));
        assert_eq!(header("ce-id"), header("ce-time"));
        assert_eq!(header("content-type"), Some("application/json"));
        assert_eq!(&call.body.0[..], br#"{"job":"clean"}"#);
        assert_eq!(call.idempotency_key.as_deref(), Some("nightly/2026-11-27T00:00:00Z"));
        let again = super::call(&function, &schedule, due);
        assert_eq!(
            (&again.idempotency_key, &again.owner),
            (&call.idempotency_key, &call.owner)
        );
        let by_hand = call_by_hand(&function, &schedule, due);
        assert_eq!(by_hand.idempotency_key, None);
    }
}

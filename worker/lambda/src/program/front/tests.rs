use std::sync::mpsc::sync_channel;

use super::*;

fn begin(is_streamed: bool, content_type: &str) -> ResponsePart {
    ResponsePart::Begin {
        is_streamed,
        content_type: content_type.to_owned(),
    }
}

fn failure(body: &str) -> ResponsePart {
    ResponsePart::Failed(Failure {
        is_function_s: true,
        content_type: JSON.to_owned(),
        body: body.into(),
    })
}

fn answered(kind: RequestKind, parts: Vec<ResponsePart>) -> (io::Result<()>, String) {
    answered_to(kind, parts, false)
}

fn answered_to(kind: RequestKind, parts: Vec<ResponsePart>, is_head: bool) -> (io::Result<()>, String) {
    let (to, from) = sync_channel(parts.len());
    parts.into_iter().for_each(|part| to.send(part).unwrap());
    drop(to);
    let mut written = Vec::new();
    let result = answer(kind, &from, &mut written, is_head);
    (result, String::from_utf8(written).unwrap())
}

fn bytes(text: &str) -> ResponsePart {
    ResponsePart::Bytes(text.into())
}

#[test]
fn a_buffered_answer_is_a_response_to_requests_and_itself_to_events() {
    let parts = || {
        vec![
            begin(false, JSON),
            bytes(r#"{"statusCode":201,"body":"x"}"#),
            ResponsePart::End,
        ]
    };
    let (_, http) = answered(RequestKind::Http, parts());
    assert!(
        http.starts_with("HTTP/1.1 201 \r\n") && http.ends_with("\r\n\r\nx"),
        "{http}"
    );
    for kind in [RequestKind::Event, RequestKind::Aws] {
        let (_, event) = answered(kind, parts());
        assert!(event.starts_with("HTTP/1.1 200 OK\r\n") && event.ends_with(r#"{"statusCode":201,"body":"x"}"#));
    }
}

#[test]
fn an_error_is_told_in_the_words_of_each_caller() {
    for (kind, start, header) in [
        (RequestKind::Http, "HTTP/1.1 500 ", "x-fn-function-error: Unhandled\r\n"),
        (
            RequestKind::Event,
            "HTTP/1.1 500 ",
            "x-fn-function-error: Unhandled\r\n",
        ),
        (RequestKind::Aws, "HTTP/1.1 200 ", "x-amz-function-error: Unhandled\r\n"),
    ] {
        let (_, told) = answered(kind, vec![failure("why")]);
        assert!(
            told.starts_with(start) && told.contains(header) && told.ends_with("\r\n\r\nwhy"),
            "{told}"
        );
    }
    let (_, invalid) = answered(
        RequestKind::Http,
        vec![begin(false, JSON), bytes(r#"{"statusCode":1}"#), ResponsePart::End],
    );
    assert!(
        invalid.starts_with("HTTP/1.1 500 ") && invalid.contains("Runtime.InvalidResponse"),
        "{invalid}"
    );
    // Nobody answered.
    assert!(answered(RequestKind::Aws, Vec::new()).1.starts_with("HTTP/1.1 502 "));
}

#[test]
fn a_stream_may_begin_with_the_head_of_its_response() {
    let head = r#"{"statusCode":202,"headers":{"content-type":"text/html"},"cookies":["a=b"]}"#;
    let streams = |first: Vec<ResponsePart>| {
        let mut parts = vec![begin(true, INTEGRATION)];
        parts.extend(first);
        parts.extend([bytes("more"), ResponsePart::End]);
        answered(RequestKind::Http, parts)
    };
    // However it is cut.
    for first in [
        vec![bytes(&format!("{head}\0\0\0\0\0\0\0\0one"))],
        vec![bytes(head), bytes("\0\0\0"), bytes("\0\0\0\0\0on"), bytes("e")],
    ] {
        let (result, told) = streams(first);
        result.unwrap();
        assert!(
            told.starts_with("HTTP/1.1 202 Accepted\r\ncontent-type: text/html\r\nset-cookie: a=b\r\n"),
            "{told}"
        );
        assert!(
            told.contains("transfer-encoding: chunked") && told.ends_with("4\r\nmore\r\n0\r\n\r\n"),
            "{told}"
        );
    }
    for wrong in ["", "no JSON\0\0\0\0\0\0\0\0"] {
        assert!(streams(vec![bytes(wrong)]).1.contains("Runtime.InvalidResponse"));
    }
    // Without one it is the body.
    let plain = || vec![begin(true, "text/plain"), bytes("one"), ResponsePart::End];
    assert!(
        answered(RequestKind::Http, plain())
            .1
            .starts_with("HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\n")
    );
    assert!(
        answered(RequestKind::Aws, plain())
            .1
            .contains("content-type: text/plain")
    );
}

#[test]
fn a_response_that_may_have_no_body_has_none() {
    for (parts, is_head) in [
        (
            vec![
                begin(true, INTEGRATION),
                bytes("{\"statusCode\":204}\0\0\0\0\0\0\0\0one"),
                ResponsePart::End,
            ],
            false,
        ),
        (vec![begin(true, JSON), bytes("one"), ResponsePart::End], true),
        (vec![begin(false, JSON), bytes("one"), ResponsePart::End], true),
        (vec![failure("one")], true),
    ] {
        let (result, told) = answered_to(RequestKind::Http, parts, is_head);
        assert!(
            result.is_ok() && told.ends_with("\r\n\r\n") && !told.contains("one"),
            "{told}"
        );
    }
}

#[test]
fn an_answer_that_fails_after_its_beginning_has_no_end() {
    let (result, told) = answered(RequestKind::Aws, vec![begin(true, JSON), bytes("one"), failure("why")]);
    assert!(result.is_err() && told.ends_with("3\r\none\r\n"), "{told}");
    let parts = vec![begin(true, INTEGRATION), bytes("{}"), failure("why")];
    assert!(answered(RequestKind::Http, parts).1.starts_with("HTTP/1.1 500 "));
}

#[test]
fn a_trace_parent_is_written_as_x_ray_does() {
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    assert_eq!(
        trace(parent),
        "Root=1-4bf92f35-77b34da6a3ce929d0e0e4736;Parent=00f067aa0ba902b7;Sampled=1"
    );
    assert!(trace(&parent.replace("-01", "-00")).ends_with("Sampled=0"));
    assert_eq!(trace("none"), "");
}

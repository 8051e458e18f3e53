use super::*;

fn function() -> FunctionIdentity {
    FunctionIdentity {
        name: "hello".to_owned(),
        version: "3".to_owned(),
        handler: "app.handler".to_owned(),
        arn: String::new(),
        timeout_s: 30,
    }
}

fn event_of(head: &str, body: &[u8]) -> Value {
    let request = Request::read(&mut head.as_bytes()).unwrap().unwrap();
    event(&function(), &request, "id-1", body)
}

#[test]
fn a_request_is_an_event_of_format_2_0() {
    let event = event_of(
        "POST /a%20b?x=1&y=%C3%A9+%2&x=2&z HTTP/1.1\r\nHost: hello.example\r\nX-A: 1\r\nX-A: 2\r\nCookie: a=1; b=2\r\n\
         X-Fn-Deadline-Ms: 5\r\nX-Forwarded-For: 192.0.2.1, 10.0.0.1\r\nUser-Agent: test\r\n\r\n",
        b"{\"k\":1}",
    );
    let at = |path: &[&str]| path.iter().fold(&event, |value, name| value.get(name).unwrap()).clone();
    for (path, is) in [
        (&["version"][..], "2.0"),
        (&["rawPath"], "/a%20b"),
        (&["rawQueryString"], "x=1&y=%C3%A9+%2&x=2&z"),
        (&["queryStringParameters", "x"], "1,2"),
        (&["queryStringParameters", "y"], "é %2"),
        (&["queryStringParameters", "z"], ""),
        (&["headers", "x-a"], "1,2"),
        (&["body"], "{\"k\":1}"),
        (&["requestContext", "requestId"], "id-1"),
        (&["requestContext", "http", "sourceIp"], "192.0.2.1"),
        (&["requestContext", "http", "path"], "/a%20b"),
        (&["requestContext", "http", "userAgent"], "test"),
        (&["requestContext", "domainPrefix"], "hello"),
    ] {
        assert_eq!(at(path), Value::text(is), "{path:?}");
    }
    assert_eq!(at(&["cookies"]).to_string(), r#"["a=1","b=2"]"#);
    assert_eq!(at(&["isBase64Encoded"]), Value::Bool(false));
    assert_eq!(at(&["headers"]).get("x-fn-deadline-ms"), None);
}

#[test]
fn what_is_no_text_is_encoded() {
    for (content_type, body, is) in [
        ("application/octet-stream", &b"ab"[..], "YWI="),
        ("application/x-www-form-urlencoded", b"a=b", "YT1i"),
        ("text/plain", b"\xff", "/w=="),
    ] {
        let event = event_of(&format!("PUT / HTTP/1.1\r\nContent-Type: {content_type}\r\n\r\n"), body);
        assert_eq!(event.get("isBase64Encoded"), Some(&Value::Bool(true)), "{content_type}");
        assert_eq!(event.get("body"), Some(&Value::text(is)));
    }
    let event = event_of(
        "PUT / HTTP/1.1\r\nContent-Type: application/problem+json; charset=utf-8\r\n\r\n",
        b"{}",
    );
    assert_eq!(event.get("body"), Some(&Value::text("{}")));
    assert_eq!(event_of("GET / HTTP/1.1\r\n\r\n", b"").get("body"), None);
}

#[test]
fn an_answer_is_a_response_or_the_body_of_one() {
    let (head, body) = response(
        br#"{"statusCode": "201", "headers": {"X-A": "1", "X-N": 2, "Connection": "close"},
            "multiValueHeaders": {"X-M": ["a", "b"]}, "cookies": ["c=1"], "body": "aGk=", "isBase64Encoded": true}"#,
    )
    .unwrap();
    let fields: Vec<_> = head
        .headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    assert_eq!((head.status, body.as_slice()), (201, &b"hi"[..]));
    let expected = [
        "x-a: 1",
        "x-n: 2",
        "x-m: a",
        "x-m: b",
        "set-cookie: c=1",
        "content-type: application/json",
    ];
    assert_eq!(fields, expected);
    for (answer, body) in [("{\"a\":1}", "{\"a\":1}"), ("\"x\"", "\"x\""), ("plain", "plain")] {
        let plain = (Head::of_type(200, JSON), body.as_bytes().to_vec());
        assert_eq!(response(answer.as_bytes()).unwrap(), plain);
    }
    let (head, body) =
        response(br#"{"statusCode": 204.0, "headers": {"content-type": "a/b"}, "body": {"k": [1]}}"#).unwrap();
    assert_eq!((head, body), (Head::of_type(204, "a/b"), br#"{"k":[1]}"#.to_vec()));
}

#[test]
fn an_answer_that_is_no_response_says_why() {
    for (answer, why) in [
        (r#"{"statusCode": 99}"#, "not between"),
        (r#"{"statusCode": null}"#, "not a number"),
        (r#"{"statusCode": "x"}"#, "not a number"),
        (r#"{"statusCode": 200, "headers": []}"#, "not an object"),
        (
            r#"{"statusCode": 200, "headers": {"a": "b\r\nc: d"}}"#,
            "no header may have",
        ),
        (r#"{"statusCode": 200, "headers": {"a": {}}}"#, "neither a text"),
        (
            r#"{"statusCode": 200, "body": "*", "isBase64Encoded": true}"#,
            "no base64",
        ),
    ] {
        let error = response(answer.as_bytes()).unwrap_err();
        assert!(error.contains(why), "{answer}: {error}");
    }
}

#[test]
fn times_are_written_as_web_servers_do() {
    for (seconds, text) in [
        (0, "01/Jan/1970:00:00:00 +0000"),
        (951_782_400, "29/Feb/2000:00:00:00 +0000"),
        (1_583_348_638, "04/Mar/2020:19:03:58 +0000"),
        (1_798_761_599, "31/Dec/2026:23:59:59 +0000"),
    ] {
        assert_eq!(common_log_time(seconds), text);
    }
}

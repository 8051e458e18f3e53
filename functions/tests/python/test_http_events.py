"""An HTTP invocation: the event a handler sees, and the response its value becomes."""

import base64
import unittest

from bootstrap_process import Bootstrap

ECHO = {
    "main.py": """
    def handler(event, context):
        return event
"""
}

# Answers with what the body of the request evaluates to.
EVALUATE = {
    "main.py": """
    import decimal
    def handler(event, context):
        return eval(event["body"])
"""
}


class TheEvent(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.function = cls.enterClassContext(Bootstrap(ECHO))

    def test_is_payload_2_0_with_path_query_headers_and_context(self):
        event = self.function.request(
            "/a%20b/c?x=1&y=two%20words&x=3&empty=",
            headers={
                "Host": "greet.localhost:8080",
                "User-Agent": "test/1",
                "X-Request-Id": "r-1",
                "X-Forwarded-For": "192.0.2.7, 10.0.0.1",
            },
        ).json
        self.assertEqual("2.0", event["version"])
        self.assertEqual("/a%20b/c", event["rawPath"])
        self.assertEqual("x=1&y=two%20words&x=3&empty=", event["rawQueryString"])
        self.assertEqual({"x": "1,3", "y": "two words", "empty": ""}, event["queryStringParameters"])
        self.assertEqual("r-1", event["headers"]["x-request-id"])
        request = event["requestContext"]
        self.assertEqual(
            {
                "method": "GET",
                "path": "/a%20b/c",
                "protocol": "HTTP/1.1",
                "sourceIp": "192.0.2.7",
                "userAgent": "test/1",
            },
            request["http"],
        )
        self.assertEqual(
            ("r-1", "greet", "greet.localhost:8080", "greet"),
            (request["requestId"], request["apiId"], request["domainName"], request["domainPrefix"]),
        )
        self.assertGreater(request["timeEpoch"], 1_700_000_000_000)
        self.assertRegex(request["time"], r"^\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d \+0000$")

    def test_without_query_cookies_or_body_goes_without_those_keys(self):
        event = self.function.request("/").json
        self.assertEqual("", event["rawQueryString"])
        self.assertFalse({"queryStringParameters", "cookies", "body"} & event.keys())

    def test_keeps_the_platforms_own_headers_from_the_handler(self):
        headers = self.function.request(
            "/", headers={"x-fn-deadline-ms": "1999999999999", "x-fn-invocation": "http"}
        ).json["headers"]
        self.assertFalse([name for name in headers if name.startswith("x-fn-") or name == "connection"])

    def test_splits_cookies(self):
        self.assertEqual(["a=1", "b=2"], self.function.request("/", headers={"Cookie": "a=1; b=2"}).json["cookies"])

    def test_carries_text_as_text(self):
        for kind in ("text/plain", "application/json; charset=utf-8", "application/problem+json"):
            event = self.function.request("/", "POST", "grün".encode(), {"Content-Type": kind}).json
            self.assertEqual(("grün", False), (event["body"], event["isBase64Encoded"]), kind)

    def test_carries_binary_and_forms_as_base64(self):
        for kind, body in (
            ("application/octet-stream", b"\x00\xff"),
            ("application/x-www-form-urlencoded", b"a=1"),
            ("text/plain", b"\xff"),
        ):
            event = self.function.request("/", "POST", body, {"Content-Type": kind}).json
            self.assertTrue(event["isBase64Encoded"], kind)
            self.assertEqual(body, base64.b64decode(event["body"]), kind)


class TheResponse(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.function = cls.enterClassContext(Bootstrap(EVALUATE))

    def answer(self, expression):
        return self.function.request("/", "POST", expression.encode(), {"Content-Type": "text/plain"})

    def test_of_a_response_object_has_its_status_headers_and_body(self):
        answer = self.answer(
            "{'statusCode': 201, 'headers': {'X-A': 'b', 'Content-Type': 'text/html'}, 'body': 'grün'}"
        )
        self.assertEqual(
            (201, "b", "text/html", "grün".encode()),
            (answer.status, answer.headers["x-a"], answer.headers["content-type"], answer.body),
        )

    def test_of_a_response_object_without_content_type_is_json_and_may_lack_a_body(self):
        answer = self.answer("{'statusCode': '404'}")
        self.assertEqual((404, "application/json", b""), (answer.status, answer.headers["content-type"], answer.body))

    def test_of_any_other_value_is_its_json(self):
        for expression, body in (
            ("'hi'", b'"hi"'),
            ("None", b"null"),
            ("[1, {'a': 'ü'}]", '[1,{"a":"ü"}]'.encode()),
            ("{'a': 1}", b'{"a":1}'),
            ("decimal.Decimal('1.5')", b"1.5"),
            ("decimal.Decimal('3')", b"3"),
        ):
            answer = self.answer(expression)
            self.assertEqual(
                (200, "application/json", body),
                (answer.status, answer.headers["content-type"], answer.body),
                expression,
            )

    def test_decodes_base64(self):
        answer = self.answer("{'statusCode': 200, 'body': 'AP8=', 'isBase64Encoded': True}")
        self.assertEqual(b"\x00\xff", answer.body)

    def test_sets_every_cookie_and_repeated_header(self):
        answer = self.answer(
            "{'statusCode': 200, 'cookies': ['a=1; Secure', 'b=2'], 'multiValueHeaders': {'x-m': ['1', '2']}}"
        )
        self.assertEqual(["a=1; Secure", "b=2"], answer.cookies)
        self.assertEqual("2", answer.headers["x-m"])

    def test_ignores_framing_headers_of_the_handler(self):
        answer = self.answer(
            "{'statusCode': 200, 'headers': {'Content-Length': '999', 'Transfer-Encoding': 'chunked'}, 'body': 'abc'}"
        )
        self.assertEqual(("3", b"abc"), (answer.headers["content-length"], answer.body))

    def test_refuses_what_is_no_response(self):
        for expression in (
            "{'statusCode': 'x'}",
            "{'statusCode': 99}",
            "{'statusCode': 200, 'headers': {'a': 'b\\r\\nc: d'}}",
            "{'statusCode': 200, 'headers': {'a b': 'c'}}",
            "{'statusCode': 200, 'headers': ['a']}",
            "{'statusCode': 200, 'body': '!', 'isBase64Encoded': True}",
        ):
            answer = self.answer(expression)
            self.assertEqual(
                (500, "Unhandled", "Runtime.InvalidResponse"),
                (answer.status, answer.headers.get("x-fn-function-error"), answer.json["errorType"]),
                expression,
            )
            self.assertNotIn("c", answer.headers)

    def test_to_a_value_that_json_cannot_carry_is_a_marshal_error(self):
        for expression in ("object()", "float('nan')", "{1: {2, 3}}", "{'statusCode': 200, 'body': {1j}}", "'\\ud800'"):
            answer = self.answer(expression)
            self.assertEqual(
                (500, "Unhandled", "Runtime.MarshalError"),
                (answer.status, answer.headers.get("x-fn-function-error"), answer.json["errorType"]),
                expression,
            )


if __name__ == "__main__":
    unittest.main()

"""CloudEvents 1.0: what a handler gets, and what comes of one that it returns. Messages are made and read by the
project's own SDK where that is installed."""

import base64
import json
import unittest

from bootstrap_process import Bootstrap

# Answers with the event under `data`, in an event of its own.
REPLY = {
    "main.py": """
    def handler(event, context):
        if isinstance(event, list):
            return [{**one, "id": one["id"] + "-r"} for one in event]
        if "specversion" not in event:
            return {"plain": event["rawPath"]}
        if event["type"] == "wants.none":
            return {"statusCode": 202}
        if event["type"] == "wants.bytes":
            return {"specversion": "1.0", "id": "1", "source": "/s", "type": "t",
                    "datacontenttype": "image/png", "data": b"\\x00\\xff"}
        if event["type"] == "wants.wrong":
            return {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "Bad-Name": "x"}
        return {"specversion": "1.0", "id": "r-1", "source": "/replies", "type": "reply", "subject": "grün 100%",
                "count": 3, "flag": True, "data": event}
"""
}

BINARY = {"ce-specversion": "1.0", "ce-id": "e-1", "ce-source": "/shop", "ce-type": "order.made"}


class ACloudEvent(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.function = cls.enterClassContext(Bootstrap(REPLY))

    def post(self, body, headers):
        return self.function.request("/", "POST", body, headers)

    def test_in_binary_mode_is_headers_and_a_body(self):
        answer = self.post(
            b'{"a": 1}',
            {
                **BINARY,
                "Content-Type": "application/json",
                "ce-time": "2026-11-27T00:00:00Z",
                "ce-subject": "gr%C3%BCn%20%22x%22",
            },
        )
        self.assertEqual(200, answer.status)
        self.assertEqual(
            {
                "specversion": "1.0",
                "id": "e-1",
                "source": "/shop",
                "type": "order.made",
                "time": "2026-11-27T00:00:00Z",
                "subject": 'grün "x"',
                "datacontenttype": "application/json",
                "data": {"a": 1},
            },
            answer.json,
        )

    def test_carries_data_of_any_type_or_none(self):
        for kind, body, expected in (
            ("text/plain", "grün".encode(), {"data": "grün"}),
            ("image/png", b"\x00\xff", {"data_base64": "AP8="}),
            ("application/vnd.x+json", b"[1]", {"data": [1]}),
            (None, b"7", {"data": 7}),
            (None, None, {}),
        ):
            headers = {**BINARY, **({"Content-Type": kind} if kind else {})}
            event = self.post(body, headers).json
            self.assertEqual(
                expected,
                {name: value for name, value in event.items() if name.startswith("data") and name != "datacontenttype"},
            )

    def test_in_structured_mode_is_the_body(self):
        event = {"specversion": "1.0", "id": "e-2", "source": "/shop", "type": "order.made", "data": {"b": 2}}
        answer = self.post(json.dumps(event).encode(), {"Content-Type": "application/cloudevents+json; charset=utf-8"})
        self.assertEqual("application/cloudevents+json", answer.headers["content-type"])
        self.assertEqual(("reply", event), (answer.json["type"], answer.json["data"]))

    def test_may_come_in_a_batch(self):
        batch = [{"specversion": "1.0", "id": str(n), "source": "/s", "type": "t"} for n in range(3)]
        answer = self.post(json.dumps(batch).encode(), {"Content-Type": "application/cloudevents-batch+json"})
        self.assertEqual("application/cloudevents-batch+json", answer.headers["content-type"])
        self.assertEqual(["0-r", "1-r", "2-r"], [event["id"] for event in answer.json])

    def test_that_a_handler_returns_is_sent_in_the_mode_of_the_request(self):
        answer = self.post(b"{}", {**BINARY, "Content-Type": "application/json"})
        self.assertEqual(
            ("1.0", "r-1", "/replies", "reply", "gr%C3%BCn%20100%25", "3", "true"),
            tuple(
                answer.headers["ce-" + name]
                for name in ("specversion", "id", "source", "type", "subject", "count", "flag")
            ),
        )
        answer = self.post(None, {**BINARY, "ce-type": "wants.bytes"})
        self.assertEqual(("image/png", b"\x00\xff"), (answer.headers["content-type"], answer.body))
        structured = json.dumps({"specversion": "1.0", "id": "1", "source": "/s", "type": "wants.bytes"}).encode()
        answer = self.post(structured, {"Content-Type": "application/cloudevents+json"})
        self.assertEqual(b"\x00\xff", base64.b64decode(answer.json["data_base64"]))

    def test_may_be_answered_by_any_other_response(self):
        self.assertEqual(202, self.post(None, {**BINARY, "ce-type": "wants.none"}).status)

    def test_that_is_none_is_refused_and_one_that_cannot_be_sent_is_an_error(self):
        for body, headers in (
            (b"{", {"Content-Type": "application/cloudevents+json"}),
            (b"[]", {"Content-Type": "application/cloudevents+json"}),
            (b"{}", {"Content-Type": "application/cloudevents-batch+json"}),
            (b"[1]", {"Content-Type": "application/cloudevents-batch+json"}),
            (None, {"ce-specversion": "1.0", "ce-id": "1"}),
            (b"{", {**BINARY, "Content-Type": "application/json"}),
        ):
            answer = self.post(body, headers)
            self.assertEqual((400, "Runtime.InvalidEvent"), (answer.status, answer.json["errorType"]), (body, headers))
        answer = self.post(None, {**BINARY, "ce-type": "wants.wrong"})
        self.assertEqual((500, "Runtime.InvalidResponse"), (answer.status, answer.json["errorType"]))

    def test_of_another_version_and_a_plain_request_stay_plain(self):
        self.assertEqual({"plain": "/"}, self.post(None, {**BINARY, "ce-specversion": "0.3"}).json)
        self.assertEqual({"plain": "/"}, self.function.request("/").json)


class TheSdk(unittest.TestCase):
    """Messages of the project's own SDK (cloudevents 2 on PyPI)."""

    @classmethod
    def setUpClass(cls):
        try:
            from cloudevents.core.bindings import http
            from cloudevents.core.v1.event import CloudEvent
        except ImportError:
            raise unittest.SkipTest("skipped: the package cloudevents 2 is not installed") from None
        cls.http, cls.make = http, CloudEvent
        cls.function = cls.enterClassContext(Bootstrap(REPLY))

    def exchange(self, convert, attributes, data):
        sent = type(self).make({"type": "order.made", "source": "https://example.com/shop", **attributes}, data)
        message = convert(sent)
        answer = self.function.request("/", "POST", message.body, message.headers)
        self.assertEqual(200, answer.status, answer.body)
        reply = self.http.from_http_event(self.http.HTTPMessage(answer.headers, answer.body))
        self.assertEqual(
            ("1.0", "r-1", "/replies", "reply", "grün 100%"),
            (reply.get_specversion(), reply.get_id(), reply.get_source(), reply.get_type(), reply.get_subject()),
        )
        got = reply.get_data()
        self.assertEqual((sent.get_id(), sent.get_source(), sent.get_type()), (got["id"], got["source"], got["type"]))
        self.assertEqual(sent.get_time().isoformat().replace("+00:00", "Z"), got["time"])
        return got

    def test_is_understood_and_understands_in_both_modes(self):
        for convert in (self.http.to_binary_event, self.http.to_structured_event):
            got = self.exchange(
                convert,
                {"datacontenttype": "application/json", "subject": 'grün "a" 100%', "extra": "x y"},
                {"order": 7},
            )
            self.assertEqual(('grün "a" 100%', "x y", {"order": 7}), (got["subject"], got["extra"], got["data"]))
            got = self.exchange(convert, {"datacontenttype": "text/plain"}, "grün")
            self.assertEqual("grün", got["data"])
            got = self.exchange(convert, {"datacontenttype": "image/png"}, b"\x00\xff")
            self.assertEqual("AP8=", got["data_base64"])

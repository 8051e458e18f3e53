"""The HTTP/1.1 server under what real and hostile peers send."""

import socket
import time
import unittest
from pathlib import Path

from bootstrap_process import LIMIT_S, Bootstrap

FILES = {
    "main.py": """
    def handler(event, context):
        body = event.get("body", "")
        method = event['requestContext']['http']['method']
        answer = f"{method} {len(body)} {body[:20]}"
        return {"statusCode": 200, "headers": {"content-type": "text/plain"}, "body": answer}

    def large(event, context):
        return {"statusCode": 200, "headers": {"content-type": "text/plain"}, "body": "x" * 3_000_000}

    def empty(event, context):
        return {"statusCode": 204, "body": "not to be sent"}
"""
}


class Server(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.function = cls.enterClassContext(Bootstrap(FILES))

    def test_keeps_the_connection_for_the_next_request(self):
        connection = self.function.connect()
        for body in ("a", "bb", "ccc"):
            connection.request("POST", "/", body, {"Content-Type": "text/plain"})
            answer = connection.getresponse()
            self.assertEqual(f"POST {len(body)} {body}".encode(), answer.read())
            self.assertIsNone(answer.getheader("connection"))
        connection.close()

    def test_answers_pipelined_requests_in_order(self):
        data = (
            b"POST / HTTP/1.1\r\ncontent-type: text/plain\r\ncontent-length: 1\r\n\r\n"
            b"aGET /2 HTTP/1.1\r\nconnection: close\r\n\r\n"
        )
        received = self.function.raw(data)
        self.assertLess(received.index(b"POST 1 a"), received.index(b"GET 0 "))

    def test_reads_chunked_bodies_with_extensions_and_trailers_however_they_arrive(self):
        head = b"POST / HTTP/1.1\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
        chunks = b"3;name=value\r\nabc\r\nA\r\n0123456789\r\n0\r\nx-trailer: 1\r\n\r\n"
        self.assertIn(b"POST 13 abc0123456789", self.function.raw(head + chunks))
        self.assertIn(b"POST 13 abc0123456789", self.function.raw(head, [bytes([byte]) for byte in chunks]))

    def test_takes_a_large_body_and_gives_a_large_response(self):
        answer = self.function.request("/", "POST", "y" * 5_000_000, {"Content-Type": "text/plain"})
        self.assertEqual(b"POST 5000000 " + b"y" * 20, answer.body)
        with Bootstrap(FILES, "main.large") as function:
            self.assertEqual(b"x" * 3_000_000, function.request().body)

    def test_sends_no_body_for_head_and_204(self):
        received = self.function.raw(b"HEAD / HTTP/1.1\r\nconnection: close\r\n\r\n")
        self.assertTrue(received.endswith(b"\r\n\r\n"))
        self.assertIn(b"content-length: 7\r\n", received)
        with Bootstrap(FILES, "main.empty") as function:
            received = function.raw(b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n")
            self.assertTrue(received.startswith(b"HTTP/1.1 204 ") and received.endswith(b"\r\n\r\n"), received)
            self.assertNotIn(b"content-length", received)

    def test_says_continue_to_who_asks(self):
        with socket.create_connection(("127.0.0.1", self.function.port), timeout=LIMIT_S) as sock:
            sock.sendall(
                b"POST / HTTP/1.1\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n"
                b"expect: 100-continue\r\nconnection: close\r\n\r\n"
            )
            self.assertEqual(b"HTTP/1.1 100 Continue\r\n\r\n", sock.recv(100))
            sock.sendall(b"ok")
            self.assertIn(b"200 OK", sock.recv(1000))

    def test_closes_after_http_1_0_and_on_request(self):
        self.assertIn(b"connection: close", self.function.raw(b"GET / HTTP/1.0\r\n\r\n"))
        self.assertIn(b"connection: close", self.function.raw(b"GET / HTTP/1.1\r\nConnection: Close\r\n\r\n"))

    def test_refuses_what_is_ambiguous_and_closes(self):
        for request, status in (
            (b"GET /\r\n\r\n", 400),
            (b"GET / HTTP/2.0\r\n\r\n", 400),
            (b"G(T / HTTP/1.1\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\nname : v\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\na: b\r\n folded\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\na: b\nc: d\r\n\r\n", 400),
            (b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n", 400),
            (b"POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab", 400),
            (b"POST / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
            (b"POST / HTTP/1.1\r\ntransfer-encoding: gzip\r\n\r\n", 501),
            (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400),
            (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\na: " + b"x" * 300_000, 431),
        ):
            received = self.function.raw(request)
            self.assertTrue(received.startswith(b"HTTP/1.1 %d " % status), (request[:80], received[:80]))
            self.assertEqual(1, received.count(b"connection: close\r\n\r\n"), request[:80])

    def test_outlives_peers_that_leave_in_the_middle(self):
        for start in (
            b"",
            b"GET / HT",
            b"POST / HTTP/1.1\r\ncontent-length: 10\r\n\r\nabc",
            b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab",
        ):
            socket.create_connection(("127.0.0.1", self.function.port)).close()
            sock = socket.create_connection(("127.0.0.1", self.function.port))
            sock.sendall(start)
            sock.close()
        self.assertEqual(200, self.function.request().status)

    def test_closes_its_end_of_idle_connections_and_ends_surplus_threads(self):
        status = Path(f"/proc/{self.function.process.pid}")

        def opened(link):
            try:
                return link.readlink().name
            except FileNotFoundError:  # closed since the folder was listed
                return ""

        def sockets():
            return sum("socket" in opened(link) for link in (status / "fd").iterdir())

        idle = [socket.create_connection(("127.0.0.1", self.function.port)) for _ in range(40)]
        self.assertEqual(200, self.function.request().status)
        for sock in idle:
            sock.close()
        limit = time.monotonic() + LIMIT_S
        while (sockets() > 1 or len(list((status / "task").iterdir())) > 12) and time.monotonic() < limit:
            time.sleep(0.02)
        self.assertEqual(1, sockets(), "only the listening socket is left")
        self.assertLessEqual(len(list((status / "task").iterdir())), 12)
        self.assertEqual(200, self.function.request().status)


if __name__ == "__main__":
    unittest.main()

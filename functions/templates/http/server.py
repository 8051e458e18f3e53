"""Any program that serves HTTP/1.1 on $PORT is a function. This one needs nothing but Python, and greets whom it is
told to:

    curl 'URL/?name=Ada'    curl URL -d '{"name": "Ada"}'
"""

import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keep connections open between requests
    disable_nagle_algorithm = True
    wbufsize = -1  # send head and body together

    def do_GET(self):
        name = parse_qs(urlsplit(self.path).query).get("name", ["world"])[0]
        self.answer(200, f"Hello, {name}!\n")

    def do_POST(self):
        try:
            body = json.loads(self.read_body() or "null")
        except ValueError:
            return self.answer(400, "the body is not JSON\n")
        name = body.get("name") if isinstance(body, dict) else None
        self.answer(200, f"Hello, {name or 'world'}!\n")

    def read_body(self):
        if self.headers["transfer-encoding"] != "chunked":
            return self.rfile.read(int(self.headers["content-length"] or 0))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass  # trailers
        return b"".join(chunks)

    def answer(self, status, text):
        body = text.encode()
        self.send_response(status)
        self.send_header("content-type", "text/plain; charset=utf-8")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass  # the platform logs requests


ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()

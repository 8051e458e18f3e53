"""Any program that serves HTTP/1.1 on $PORT is a function. This one needs nothing but Python."""

import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keep connections open between requests
    disable_nagle_algorithm = True
    wbufsize = -1  # send head and body together

    def do_GET(self):
        name = parse_qs(urlsplit(self.path).query).get("name", ["world"])[0]
        body = f"Hello, {name}!\n".encode()
        self.send_response(200)
        self.send_header("content-type", "text/plain; charset=utf-8")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass  # the platform logs requests


ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()

"""Serves what a program draws; it has drawn once before its snapshot."""

import json
import os
from http.server import BaseHTTPRequestHandler


def serve(draw, server):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments):
            pass

        def do_GET(self):
            body = json.dumps(draw()).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    draw()
    server(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()

"""Long bodies: POST /echo answers with the body while it arrives; GET /stream sends `pieces` pieces of `bytes` bytes,
`pause_ms` apart."""

import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import rekindle

PIECE = 64 * 1024


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def do_POST(self):
        if self.path.startswith("/hooks/"):
            rekindle.reseed()
            return self._head(content_length=0)
        left = int(self.headers.get("content-length") or 0)
        if "chunked" in self.headers.get("transfer-encoding", ""):
            return self._echo_chunks()
        self._head(content_length=left)
        while left > 0:
            piece = self.rfile.read(min(PIECE, left))
            if not piece:
                break
            left -= len(piece)
            self.wfile.write(piece)
        self.wfile.flush()

    def _echo_chunks(self):
        self._head(chunked=True)
        while (size := int(self.rfile.readline().split(b";")[0], 16)) > 0:
            self._chunk(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        self._chunk(b"")

    def do_GET(self):
        query = {name: int(values[0]) for name, values in parse_qs(urlsplit(self.path).query).items()}
        self._head(chunked=True)
        for _ in range(query.get("pieces", 1)):
            self._chunk(b"x" * query.get("bytes", 1))
            self.wfile.flush()
            time.sleep(query.get("pause_ms", 0) / 1000)
        self._chunk(b"")
        self.wfile.flush()

    def _head(self, content_length=None, chunked=False):
        self.send_response(200)
        self.send_header("content-type", "application/octet-stream")
        if chunked:
            self.send_header("transfer-encoding", "chunked")
        else:
            self.send_header("content-length", str(content_length))
        self.end_headers()

    def _chunk(self, piece):
        self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()

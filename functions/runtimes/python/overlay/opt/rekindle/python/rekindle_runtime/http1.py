"""HTTP/1.1 on one connection: reads requests (fixed-length and chunked bodies), writes each response at once.

Not http.server: that has no chunked request bodies, parses headers through the email package (24 us for ten headers,
7 us here; a whole trivial exchange 140 us against 105 us), and after a restore each module less is so many pages less
to fetch. The only peer is the platform, so the reader is strict: what is ambiguous is refused, and the connection
closed.
"""

import re
import socket

MAX_HEAD = 256 * 1024
MAX_LINE = 16 * 1024
CHUNK = 64 * 1024
# What is still read, and thrown away, from a peer that was refused.
MAX_UNREAD = 4 * 1024 * 1024

REASONS = {
    200: "OK", 201: "Created", 202: "Accepted", 204: "No Content", 301: "Moved Permanently", 302: "Found",
    303: "See Other", 304: "Not Modified", 307: "Temporary Redirect", 308: "Permanent Redirect", 400: "Bad Request",
    401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed", 409: "Conflict", 410: "Gone",
    413: "Content Too Large", 415: "Unsupported Media Type", 422: "Unprocessable Content", 429: "Too Many Requests",
    431: "Request Header Fields Too Large", 500: "Internal Server Error", 501: "Not Implemented", 502: "Bad Gateway",
    503: "Service Unavailable", 504: "Gateway Timeout",
}

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+").fullmatch
_VALUE = re.compile(r"[^\x00\r\n]*").fullmatch
_HEX = re.compile(rb"[0-9A-Fa-f]{1,15}").fullmatch
_DIGITS = re.compile(r"[0-9]{1,18}").fullmatch


class BadRequest(Exception):
    """The peer sent what is no HTTP/1.1 request. `status` is what to answer before closing."""

    def __init__(self, status, reason):
        super().__init__(reason)
        self.status = status


class Request:
    """One request: `headers` maps lower-case names to values (repeated ones joined by a comma, cookies by a
    semicolon)."""

    __slots__ = ("method", "target", "version", "headers", "body", "keep_alive", "peer")


class Response:
    """One response: `headers` is a list of (name, value); content-length and connection are the server's to add."""

    __slots__ = ("status", "headers", "body", "close")

    def __init__(self, status, headers, body, close=False):
        self.status, self.headers, self.body, self.close = status, headers, body, close


class Connection:
    """One accepted connection. Used by one thread; every method may block on the peer."""

    def __init__(self, sock, peer):
        self._sock = sock
        self._peer = peer
        self._buffer = b""

    def read_request(self):
        """The next request, or None when the peer closed between requests. Raises BadRequest, OSError."""
        head = self._read_until(b"\r\n\r\n", MAX_HEAD, at_start=True)
        if head is None:
            return None
        request = _parse_head(head)
        request.peer = self._peer
        headers = request.headers
        if headers.get("expect", "").lower() == "100-continue":
            self._sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        coding = headers.get("transfer-encoding")
        length = headers.get("content-length")
        if coding is not None:
            if length is not None:
                raise BadRequest(400, "both content-length and transfer-encoding are given")
            if coding.lower() != "chunked":
                raise BadRequest(501, f"transfer-encoding '{coding}' is not supported; use chunked")
            request.body = self._read_chunked()
        elif length is None:
            request.body = b""
        elif _DIGITS(length):
            request.body = self._read_exactly(int(length))
        else:
            raise BadRequest(400, f"content-length '{length}' is not a number")
        return request

    def write(self, response, request):
        """Sends `response` whole. A response to HEAD, 204 and 304 goes without its body."""
        status, body = response.status, response.body
        lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Status')}\r\n"]
        for name, value in response.headers:
            lines.append(f"{name}: {value}\r\n")
        if status not in (204, 304):
            lines.append(f"content-length: {len(body)}\r\n")
        if response.close or not (request and request.keep_alive):
            lines.append("connection: close\r\n")
        elif request.version == "HTTP/1.0":
            lines.append("connection: keep-alive\r\n")
        lines.append("\r\n")
        head = "".join(lines).encode("latin-1")
        if status in (204, 304) or (request and request.method == "HEAD"):
            self._sock.sendall(head)
        elif len(body) <= CHUNK:
            self._sock.sendall(head + body)
        else:
            # A large body is not copied; the kernel holds the head back until the body follows.
            self._sock.sendall(head, socket.MSG_MORE)
            self._sock.sendall(body)

    def finish(self):
        """Ends a connection whose input was not read to its end: closing at once would reset it, and the peer could
        lose the answer. Takes at most a second."""
        try:
            self._sock.shutdown(socket.SHUT_WR)
            self._sock.settimeout(1)
            for _ in range(MAX_UNREAD // CHUNK):
                if not self._sock.recv(CHUNK):
                    return
        except OSError:
            pass

    def _receive(self):
        data = self._sock.recv(CHUNK)
        if not data:
            raise ConnectionResetError("the peer closed the connection within a request")
        return data

    def _read_until(self, mark, limit, at_start=False):
        """What comes before `mark`; with `at_start`, None if the peer closed before sending anything."""
        if at_start and not self._buffer:
            self._buffer = self._sock.recv(CHUNK)
            if not self._buffer:
                return None
        start = 0
        while True:
            end = self._buffer.find(mark, start)
            if end >= 0:
                found, self._buffer = self._buffer[:end], self._buffer[end + len(mark):]
                return found
            if len(self._buffer) > limit:
                raise BadRequest(431, f"a head or line is longer than {limit} bytes")
            start = max(0, len(self._buffer) - len(mark) + 1)
            self._buffer += self._receive()

    def _read_exactly(self, length):
        if length <= len(self._buffer):
            body, self._buffer = self._buffer[:length], self._buffer[length:]
            return body
        # Grows with what has come, so that a large content-length alone reserves nothing.
        parts, missing = [self._buffer], length - len(self._buffer)
        self._buffer = b""
        while missing:
            data = self._sock.recv(min(missing, 1024 * 1024))
            if not data:
                raise ConnectionResetError("the peer closed the connection within a body")
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def _read_chunked(self):
        parts = []
        while True:
            size = self._read_until(b"\r\n", MAX_LINE).split(b";", 1)[0].strip()
            if not _HEX(size):
                raise BadRequest(400, "a chunk has no valid size")
            length = int(size, 16)
            if length == 0:
                break
            parts.append(self._read_exactly(length))
            if self._read_exactly(2) != b"\r\n":
                raise BadRequest(400, "a chunk is longer than its size says")
        while self._read_until(b"\r\n", MAX_LINE):
            pass  # Trailers are allowed and mean nothing here.
        return b"".join(parts)


def _parse_head(head):
    request_line, *lines = head.decode("latin-1").split("\r\n")
    try:
        method, target, version = request_line.split(" ")
    except ValueError:
        raise BadRequest(400, "the request line is not 'METHOD TARGET HTTP/1.1'") from None
    if not _TOKEN(method) or not target or not version.startswith("HTTP/1."):
        raise BadRequest(400, "the request line is not 'METHOD TARGET HTTP/1.1'")
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _TOKEN(name) or not _VALUE(value):
            raise BadRequest(400, "a header line is not 'name: value'")
        name, value = name.lower(), value.strip(" \t")
        if name not in headers:
            headers[name] = value
        elif name == "content-length":
            if headers[name] != value:
                raise BadRequest(400, "content-length is given twice")
        else:
            headers[name] = f"{headers[name]}{'; ' if name == 'cookie' else ','}{value}"
    request = Request()
    request.method, request.target, request.version, request.headers = method, target, version, headers
    connection = headers.get("connection", "").lower()
    request.keep_alive = "close" not in connection and (version != "HTTP/1.0" or "keep-alive" in connection)
    return request


def checked_header(name, value):
    """`(name, value)` as strings that are safe on the wire. Raises ValueError for what could split a response."""
    name, value = str(name), value if isinstance(value, str) else _header_text(value)
    if not _TOKEN(name):
        raise ValueError(f"header name {name!r} has characters that HTTP does not allow")
    if not _VALUE(value):
        raise ValueError(f"the value of header '{name}' has a line break or a NUL")
    # Text beyond Latin-1 goes out as UTF-8 bytes, which is what clients expect.
    return name, value.encode("utf-8").decode("latin-1")


def _header_text(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)

"""Invocations of other functions of the same namespace: JSON in, JSON out, over the platform's address inside of the
sandbox.

Each has a connection of its own, so that none of before a snapshot is ever used.
"""

import json
import re
import socket

from .http1 import MAX_HEAD, BadRequest, Connection

HOST, PORT = "fn.internal", 80
# As long as an invocation can take at all; the platform ends one that its caller has no time left for.
LIMIT_S = 900

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}").fullmatch


class InvokeError(Exception):
    """An invocation that failed. `status` is HTTP's, `code` the platform's word for what went wrong
    (docs/reference/errors.md)."""

    def __init__(self, function, status, code, message):
        super().__init__(f"{function}: {code} ({status}): {message}")
        self.function, self.status, self.code, self.message = function, status, code, message


def now(function, payload=None, traceparent=None, timeout=None):
    """The function's result. Raises InvokeError."""
    return _sent("/invoke/", function, payload, traceparent, timeout)


def later(function, payload=None, traceparent=None, timeout=None):
    """Has the function run later, and again if it fails. Returns the invocation's id. Raises InvokeError."""
    return _sent("/invoke-async/", function, payload, traceparent, timeout)["id"]


def _sent(path, function, payload, traceparent, timeout):
    if not isinstance(function, str) or not _NAME(function):
        raise ValueError(f"{function!r} is no function's name: use the name in its fn.toml, without its namespace")
    body = b"" if payload is None else json.dumps(payload, separators=(",", ":")).encode()
    try:
        status, kind, answer = _exchange(path + function, body, traceparent, timeout or LIMIT_S)
    except socket.gaierror as error:
        why = 'other functions cannot be reached: network = "none" in fn.toml is without them'
        raise InvokeError(function, 503, "unavailable", why) from error
    except TimeoutError as error:
        raise InvokeError(function, 504, "function_timeout", "it did not answer in the time given") from error
    except (OSError, BadRequest) as error:
        raise InvokeError(function, 503, "unavailable", f"the call broke off, and may have run: {error}") from error
    value = answer.decode("utf-8", "replace")
    if "json" in kind:
        try:
            value = json.loads(value) if value.strip() else None
        except ValueError as error:
            raise InvokeError(function, 502, "invalid_response", f"what it answered is not JSON: {error}") from error
    if 200 <= status < 300:
        return value
    said = value if isinstance(value, dict) else {}
    code, message = said.get("code", "function_error"), said.get("message", f"it answered {status}")
    raise InvokeError(function, status, code, message)


def _exchange(path, body, traceparent, timeout):
    lines = [
        f"POST {path} HTTP/1.1",
        f"host: {HOST}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "connection: close",
    ]
    if traceparent:
        lines.append(f"traceparent: {traceparent}")
    with socket.create_connection((HOST, PORT), timeout) as sock:
        sock.sendall("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)
        connection = Connection(sock, HOST)
        head, *fields = connection._read_until(b"\r\n\r\n", MAX_HEAD).decode("latin-1").split("\r\n")
        headers = {}
        for field in fields:
            name, _, value = field.partition(":")
            headers[name.lower()] = value.strip()
        if headers.get("transfer-encoding", "").lower() == "chunked":
            answer = connection._read_chunked()
        else:
            answer = connection._read_exactly(int(headers.get("content-length", "0")))
        return int(head.split(" ")[1]), headers.get("content-type", ""), answer

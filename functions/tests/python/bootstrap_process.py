"""Starts the python bootstrap on a folder written for one test, and talks HTTP to it."""

import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

RUNTIME = Path(__file__).parents[2] / "runtimes/python/overlay/opt/rekindle/python"
# How long anything may take on a machine that is busy with other tests.
LIMIT_S = 300


class Answer:
    """What came back: status, headers by lower-case name, body."""

    def __init__(self, response):
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.cookies = response.headers.get_all("set-cookie") or []
        self.body = response.read()

    @property
    def json(self):
        return json.loads(self.body)


class Bootstrap:
    """A running bootstrap. `files` maps paths below the function's folder to their (indented) text;
    `output` is a descriptor to write to instead of a file, `options` are the interpreter's."""

    def __init__(self, files, entry="main.handler", env=None, output=None, options=()):
        self._folder = tempfile.TemporaryDirectory()
        for path, text in files.items():
            file = Path(self._folder.name, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(textwrap.dedent(text))
        self.port = free_port()
        self._output = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [sys.executable, *options, str(RUNTIME / "bootstrap.py")],
            cwd=self._folder.name,
            env={
                "PATH": os.environ["PATH"],
                "LANG": "C.UTF-8",
                "PORT": str(self.port),
                "FN_HANDLER": entry,
                "FN_NAME": "greet",
                "FN_VERSION": "7",
                "FN_MEMORY_MIB": "256",
                "FN_TIMEOUT_S": "30",
                **(env or {}),
            },
            stdout=self._output if output is None else output,
            stderr=subprocess.STDOUT,
        )

    def __enter__(self):
        limit = time.monotonic() + LIMIT_S
        while time.monotonic() < limit:
            if self.process.poll() is not None:
                raise AssertionError(f"the bootstrap ended with {self.process.returncode}: {self.output()}")
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return self
            except ConnectionRefusedError:
                time.sleep(0.01)
        raise AssertionError(f"the bootstrap does not listen: {self.output()}")

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self._output.close()
        self._folder.cleanup()

    def output(self):
        """Everything the process has written so far."""
        self._output.seek(0)
        return self._output.read().decode()

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)

    def request(self, path="/", method="GET", body=None, headers=None):
        connection = self.connect()
        try:
            connection.request(method, path, body, headers or {})
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def event(self, value, headers=None):
        """Invokes with `value` as the event."""
        return self.request("/", "POST", json.dumps(value), {"x-fn-invocation": "event", **(headers or {})})

    def hook(self, name):
        return self.request(f"/.rekindle/{name}", "POST")

    def raw(self, data, parts=()):
        """Sends `data` and then each of `parts`, and reads until the peer closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT_S) as sock:
            sock.sendall(data)
            for part in parts:
                sock.sendall(part)
            received = b""
            while data := sock.recv(65536):
                received += data
            return received


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def run_to_end(files, entry="main.handler"):
    """Starts a bootstrap that is expected to give up: its exit code and output."""
    bootstrap = Bootstrap(files, entry)
    try:
        code = bootstrap.process.wait(timeout=LIMIT_S)
        return code, bootstrap.output()
    finally:
        bootstrap.__exit__()

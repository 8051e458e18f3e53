"""Every sample, and every template of `fn init`, does what its first lines say, on this machine's own interpreters.
hostile-python and the samples of Lambda's clients are left out: they belong into a sandbox, and the platform's tests
run them there."""

import contextlib
import hashlib
import http.client
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
import unittest
from pathlib import Path

FUNCTIONS = Path(__file__).parents[2]
SAMPLES = FUNCTIONS / "samples"
TEMPLATES = FUNCTIONS / "templates"
PYTHON = [sys.executable, str(FUNCTIONS / "runtimes/python/overlay/opt/rekindle/python/bootstrap.py")]
NODE = ["node", str(FUNCTIONS / "runtimes/node/overlay/opt/rekindle/node/bootstrap.js")]

# How long anything may take on a machine that is busy with other tests.
LIMIT_S = 300


def free_port():
    """A port below those that the kernel gives to others."""
    while True:
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", random.randrange(20_000, 32_000)))
            return sock.getsockname()[1]


class Running:
    """A copy of a sample, built and installed as a deploy would, and started by its fn.toml."""

    def __init__(self, name, parent=SAMPLES):
        self.folder = tempfile.TemporaryDirectory()
        folder = Path(self.folder.name) / name
        shutil.copytree(
            parent / name, folder, ignore=shutil.ignore_patterns("target", "node_modules", "__pycache__", "server")
        )
        config = tomllib.loads((folder / "fn.toml").read_text())
        if "build" in config:
            subprocess.run(
                config["build"]["command"],
                shell=True,
                cwd=folder,
                check=True,
                env={**os.environ, "CARGO_TARGET_DIR": ""},
            )
        if (folder / "requirements.txt").exists():
            target = folder / ".rekindle/python"
            subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "--no-compile",
                    "--root-user-action=ignore",
                    "--target",
                    target,
                    "-r",
                    folder / "requirements.txt",
                ],
                check=True,
            )
        if (folder / "package.json").exists():
            subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund"], cwd=folder, check=True)
            (folder / "node_modules").mkdir(exist_ok=True)
            (folder / "node_modules/rekindle").symlink_to(Path(NODE[1]).parent / "rekindle")
        # A template has a mark in the version's place.
        runtime = config["runtime"].replace("{{runtime}}", name).rstrip("0123456789.")
        command = {"python": PYTHON, "node": NODE}.get(runtime) or config["command"]
        self.port = free_port()
        environment = config.get("env", {})
        if config["runtime"] == "http":
            environment |= {"PYTHONPATH": str(folder / ".rekindle/python")}
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env={
                "PATH": os.environ["PATH"],
                "PORT": str(self.port),
                "FN_NAME": config["name"],
                "FN_HANDLER": config.get("entry", ""),
                **environment,
            },
        )

    def __enter__(self):
        limit = time.monotonic() + LIMIT_S
        while time.monotonic() < limit:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return self
            except ConnectionRefusedError:
                if self.process.poll() is not None:
                    raise AssertionError(f"the sample ended with {self.process.returncode}") from None
                time.sleep(0.02)
        raise AssertionError("the sample does not listen")

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()

    def request(self, path="/", method="GET", body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def json(self, *arguments):
        status, body = self.request(*arguments)
        assert status == 200, (status, body)
        return json.loads(body)


class Samples(unittest.TestCase):
    def started(self, name):
        return self.enterContext(Running(name))

    def test_each_has_a_config_with_its_own_name(self):
        names = [
            tomllib.loads((folder / "fn.toml").read_text())["name"] for folder in SAMPLES.iterdir() if folder.is_dir()
        ]
        self.assertGreaterEqual(len(names), 9)
        self.assertEqual(len(names), len(set(names)))

    def test_each_is_in_the_readme(self):
        readme = (FUNCTIONS / "README.md").read_text()
        for folder in SAMPLES.iterdir():
            self.assertIn(f"`{folder.name}`", readme)

    def test_hello_python_greets(self):
        self.assertEqual((200, b"Hello, Ada!\n"), self.started("hello-python").request("/?name=Ada"))

    def test_hello_node_greets(self):
        sample = self.started("hello-node")
        self.assertEqual("Hello, Ada!", sample.json("/?name=Ada")["greeting"])
        sample.request("/.rekindle/after-restore", "POST")
        self.assertEqual(1, sample.json()["restores"])

    def test_counter_python_counts_and_changes_identity_after_a_restore(self):
        sample = self.started("counter-python")
        self.assertEqual([1, 2, 2], [sample.json()["count"], sample.json()["count"], sample.json("/peek")["count"]])
        before = sample.json("/peek")
        sample.request("/.rekindle/after-restore", "POST")
        after = sample.json("/peek")
        self.assertEqual((2, 1), (after["count"], after["restores"]))
        self.assertNotEqual(before["identity"], after["identity"])

    def test_touch_python_has_64_mib_of_distinct_pages(self):
        sample = self.started("touch-python")
        first = sample.json()
        self.assertEqual(hashlib.sha256(first["page"].to_bytes(8, "little")).digest()[0], first["first"])
        self.assertEqual({"crc32": 934197566, "bytes": 64 << 20}, sample.json("/sum"))

    def test_memory_python_passes_its_own_checks_twice(self):
        sample = self.started("memory-python")
        for _ in range(2):
            answer = sample.json("/all")
            self.assertTrue(answer["ok"], [result for result in answer["results"] if not result["ok"]])
            self.assertEqual(10, len(answer["results"]))

    def test_http_rust_greets_echoes_and_counts_hooks(self):
        sample = self.started("http-rust")
        self.assertEqual((200, b""), sample.request("/hooks/after-restore", "POST"))
        self.assertEqual((200, b"Hello from a static binary; snapshots 0, restores 1\n"), sample.request())
        self.assertEqual((200, b"x" * 100_000), sample.request("/echo", "POST", b"x" * 100_000))
        self.assertEqual((200, b"abcdef"), sample.request("/echo", "POST", iter([b"abc", b"def"])))  # chunked
        self.assertEqual(404, sample.request("/nothing")[0])

    def test_numpy_python_solves_a_system(self):
        answer = self.started("numpy-python").json("/?n=200")
        self.assertEqual(200, answer["n"])
        self.assertLess(answer["error"], 1e-6)

    def test_flask_python_serves_pages_json_and_hooks(self):
        sample = self.started("flask-python")
        self.assertEqual((200, b"<h1>Hello, &lt;b&gt;!</h1>\n"), sample.request("/?name=%3Cb%3E"))
        self.assertEqual(204, sample.request("/hooks/after-restore", "POST")[0])
        answer = sample.json("/echo", "POST", b"12345", {"x-request-id": "r-1"})
        self.assertEqual((5, "r-1", 1), (answer["length"], answer["request_id"], answer["restores"]))


class Templates(unittest.TestCase):
    def test_each_greets_by_query_and_by_json_body(self):
        form, ada = {"content-type": "application/x-www-form-urlencoded"}, b'{"name": "Ada"}'
        for name in ("python", "node", "http"):
            with self.subTest(name), Running(name, TEMPLATES) as function:
                self.assertEqual((200, b"Hello, world!\n"), function.request())
                self.assertEqual((200, b"Hello, Ada!\n"), function.request("/?name=Ada"))
                for headers in ({}, form):  # curl -d says it were a form
                    self.assertEqual((200, b"Hello, Ada!\n"), function.request("/", "POST", ada, headers))
                self.assertEqual((200, b"Hello, Ada!\n"), function.request("/", "POST", iter([ada[:5], ada[5:]])))
                self.assertEqual((200, b"Hello, world!\n"), function.request("/", "POST"))
                self.assertEqual((400, b"the body is not JSON\n"), function.request("/", "POST", b"{"))

    def test_those_with_a_handler_greet_by_event(self):
        for name in ("python", "node"):
            with self.subTest(name), Running(name, TEMPLATES) as function:
                for event, greeted in (b'{"name": "Ada"}', "Ada"), (b"", "world"):
                    answer = function.json("/", "POST", event, {"x-fn-invocation": "event"})
                    self.assertEqual({"message": f"Hello, {greeted}!"}, answer)


if __name__ == "__main__":
    unittest.main()

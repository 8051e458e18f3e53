"""The Debian package unpacked into a throwaway root, its units, and its scripts against a machine's metadata that this
test plays.

REKINDLE_BIN_DIR names the directory of fn and rekindle-init.
"""

import gzip
import http.server
import os
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.request

HERE = pathlib.Path(__file__).resolve().parents[1]
BIN = pathlib.Path(os.environ["REKINDLE_BIN_DIR"])


def run(*command, **options):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=300, **options)


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.out, cls.root = pathlib.Path(cls.folder.name, "out"), pathlib.Path(cls.folder.name, "root")
        built = run(HERE / "build-deb.sh", BIN, cls.out, env={**os.environ, "DEB_COMPRESSION": "none"})
        assert built.returncode == 0, built.stderr
        (cls.deb,) = cls.out.glob("rekindle_*.deb")
        (cls.root / "var/lib/dpkg/updates").mkdir(parents=True)
        for name in ("status", "available"):
            (cls.root / "var/lib/dpkg" / name).touch()
        (cls.root / "var/lib/dpkg/info").mkdir()
        unpacked = run("dpkg", f"--root={cls.root}", "--force-not-root", "--force-depends", "--unpack", cls.deb)
        assert unpacked.returncode == 0, unpacked.stderr

    def test_what_was_installed_runs(self):
        fn = self.root / "usr/bin/fn"
        self.assertTrue(fn.is_symlink())
        version = run(fn, "--version")
        self.assertEqual(version.stdout, run(BIN / "fn", "--version").stdout)
        self.assertEqual(version.stdout.split()[1], run("dpkg-deb", "--field", self.deb, "Version").stdout.strip())
        # Where fn looks for it: beside itself, links followed.
        self.assertTrue(os.access(fn.resolve().parent / "rekindle-init", os.X_OK))

    def test_every_command_is_in_the_manual_page_and_the_completions(self):
        page = gzip.decompress((self.root / "usr/share/man/man1/fn.1.gz").read_bytes()).decode().replace("\\-", "-")
        listing = run(BIN / "fn", "--help").stdout.split("Commands:\n")[1].split("\n\n")[0]
        completions = (self.root / "usr/share/bash-completion/completions/fn").read_text()
        for command in re.findall(r"^  (\S+)", listing, re.M):
            if command != "help":
                self.assertIn(f".SH FN {command.upper()}\n", page)
                self.assertIn(f"fn,{command})", completions)

    def test_units_are_sound_and_their_options_exist(self):
        units = self.root / "lib/systemd/system"
        if shutil.which("systemd-analyze"):
            names = sorted(f"/lib/systemd/system/{unit.name}" for unit in units.glob("rekindle*"))
            # What they stand after.
            for target in pathlib.Path("/lib/systemd/system").glob("*.target"):
                shutil.copy(target, units)
            done = run("systemd-analyze", "verify", "--man=no", f"--root={self.root}", *names)
            self.assertEqual([line for line in done.stderr.splitlines() if "rekindle" in line], [], done.stderr)
        else:
            self.assertFalse(os.environ.get("REKINDLE_REQUIRE_ALL"), "systemd-analyze is missing: install systemd")
        for unit in units.glob("*.service"):
            command = re.search(r"^ExecStart=/usr/bin/fn (\w+)(.*)$", unit.read_text(), re.M)
            if command:
                usage = run(BIN / "fn", command[1], "--help").stdout
                for option in re.findall(r"--[a-z-]+", command[2]):
                    self.assertIn(option, usage, unit.name)

    def test_settings_that_are_offered_exist(self):
        for settings in (self.root / "etc/rekindle").glob("*.env"):
            command = {"rekindle": "up"}.get(settings.stem, settings.stem)
            usage = run(BIN / "fn", command, "--help").stdout
            unit = (
                self.root
                / "lib/systemd/system"
                / ("rekindle.service" if command == "up" else f"rekindle-{command}.service")
            ).read_text()
            for line in settings.read_text().splitlines():
                self.assertTrue(line.startswith("#"), "what is installed changes nothing")
                for name in re.findall(r"^#(FN_[A-Z_0-9]+)=", line):
                    self.assertTrue(
                        f"env: {name}=" in usage or f"[env: {name}" in usage or name in unit, f"{settings.name}: {name}"
                    )
                for option in re.findall(r" ?(--[a-z-]+)", line):
                    self.assertIn(option, usage, settings.name)

    def test_the_same_build_gives_the_same_bytes(self):
        again = pathlib.Path(self.folder.name, "again")
        run(HERE / "build-deb.sh", BIN, again, env={**os.environ, "DEB_COMPRESSION": "none"})
        self.assertEqual((again / self.deb.name).read_bytes(), self.deb.read_bytes())


class Hardening(unittest.TestCase):
    """What a role that was taken over may still do: units as they are in the tree."""

    # Exposure by systemd-analyze, in tenths. What makes sandboxes runs under no system call filter: CRIU could take no
    # snapshot then, and most of the scale is such filters.
    LIMITS = {
        "rekindle-gateway": 30,
        "rekindle-scheduler": 30,
        "rekindle-events": 30,
        "rekindle-cloudwatch": 30,
        "rekindle-drain": 30,
        "rekindle-worker": 81,
        "rekindle": 81,
    }
    MAKE_SANDBOXES = ("rekindle-worker", "rekindle")
    # What systemd does by a system call filter, and what costs CRIU root on Linux before 6.16.
    BREAK_SNAPSHOTS = re.compile(
        r"SystemCall|Restrict|LockPersonality|MemoryDenyWriteExecute|PrivateDevices|ProtectClock|ProtectHostname"
        r"|ProtectKernel|NoNewPrivileges"
    )

    def unit(self, name):
        return (HERE / f"systemd/{name}.service").read_text()

    def settings(self, name):
        return re.findall(r"^(\w+)=(.*)$", self.unit(name), re.M)

    def bounding_set(self, name):
        return " ".join(value for key, value in self.settings(name) if key == "CapabilityBoundingSet").split()

    def skip(self, why):
        self.assertFalse(os.environ.get("REKINDLE_REQUIRE_ALL"), why)
        self.skipTest(f"skipped: {why}")

    def test_each_unit_has_a_limit_and_keeps_to_it(self):
        self.assertEqual(set(self.LIMITS), {unit.stem for unit in (HERE / "systemd").glob("*.service")})
        if not shutil.which("systemd-analyze"):
            self.skip("systemd-analyze is missing: install systemd")
        for name, limit in self.LIMITS.items():
            with self.subTest(name):
                done = run(
                    "systemd-analyze",
                    "security",
                    "--no-pager",
                    "--offline=yes",
                    f"--threshold={limit}",
                    HERE / f"systemd/{name}.service",
                )
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_each_right_that_is_kept_says_why(self):
        for name in self.LIMITS:
            with self.subTest(name):
                self.assertIn("CapabilityBoundingSet", dict(self.settings(name)))
                kept = self.bounding_set(name)
                self.assertEqual(
                    re.findall(r"^# (CAP_\w+): \w.{10,}\nCapabilityBoundingSet=\1$", self.unit(name), re.M), kept
                )

    def test_what_makes_sandboxes_has_the_same_rights_everywhere_and_those_that_the_doctor_asks_for(self):
        worker, whole = (self.bounding_set(name) for name in self.MAKE_SANDBOXES)
        self.assertEqual(worker, whole)
        doctor = (HERE.parent / "cli/src/commands/doctor/host.rs").read_text()
        asked = re.findall(r'\("(CAP_\w+)", \d+\)', doctor)
        self.assertTrue(asked)
        self.assertLessEqual(set(asked), set(worker))

    def test_snapshots_can_be_taken_under_the_units(self):
        for name in self.MAKE_SANDBOXES:
            with self.subTest(name):
                settings = dict(self.settings(name))
                self.assertEqual([key for key in settings if self.BREAK_SNAPSHOTS.match(key)], [])
                core = settings["LimitCORE"]
                self.assertTrue(
                    core == "infinity" or int(core) >= 1, "at 0 a crash starts the program of kernel.core_pattern"
                )

    def test_a_worker_with_these_rights_restores_a_function(self):
        if os.geteuid() != 0:
            self.skip("sandboxes need root")
        if not shutil.which("setpriv"):
            self.skip("setpriv is missing: install util-linux")
        cache = pathlib.Path(os.environ.get("FN_CACHE", "/var/cache/rekindle"))
        if not list(cache.glob("runtimes/python.tar*")):
            self.skip(f"{cache}/runtimes has no runtime: scripts/setup.sh host")
        kept = ["+" + right.removeprefix("CAP_").lower() for right in self.bounding_set("rekindle-worker")]
        umask = int(dict(self.settings("rekindle-worker"))["UMask"], 8)
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "cache").mkdir()
            (folder / "cache/runtimes").symlink_to(cache / "runtimes")
            with socket.create_server(("127.0.0.1", 0)) as free:
                listen = "127.0.0.1:%d" % free.getsockname()[1]
            env = {key: value for key, value in os.environ.items() if not key.startswith("FN_")}
            env |= {
                "FN_URL": f"http://{listen}",
                "FN_RUN": str(folder / "run"),
                "FN_DATA": str(folder / "data"),
                "FN_CACHE": str(folder / "cache"),
            }
            command = [
                "setpriv",
                "--bounding-set",
                ",".join(["-all", *kept]),
                BIN / "fn",
                "up",
                "--foreground",
                "--listen",
                listen,
                "--memory",
                "1GiB",
                "--egress",
                "off",
            ]
            with (folder / "log").open("w") as log:
                platform = subprocess.Popen([str(c) for c in command], env=env, stdout=log, stderr=log, umask=umask)
            try:
                self.until_up(platform, env, folder / "log")
                deployed = run(BIN / "fn", "deploy", HERE.parent / "functions/samples/hello-python", env=env)
                self.assertEqual(deployed.returncode, 0, deployed.stdout + deployed.stderr)
                key = (folder / "data/admin.key").read_text().strip()
                asked = urllib.request.Request(
                    f"http://{listen}/function/hello",
                    headers={"Authorization": f"Bearer {key}", "x-fn-force-start": "restored"},
                )
                with urllib.request.urlopen(asked, timeout=60) as answer:
                    self.assertEqual((answer.status, answer.headers["x-fn-start"]), (200, "restored"))
            finally:
                platform.terminate()
                platform.wait(timeout=120)

    def until_up(self, platform, env, log):
        until = time.monotonic() + 120
        while run(BIN / "fn", "status", env=env).returncode != 0:
            self.assertIsNone(platform.poll(), log.read_text())
            self.assertLess(time.monotonic(), until, log.read_text())
            time.sleep(0.1)


class Machine:
    """A machine's metadata, a gateway's metrics, and commands that only note how they were called."""

    def __init__(self, folder):
        self.answers, self.folder = {}, pathlib.Path(folder)
        machine = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self, text):
                self.send_response(200 if text is not None else 404)
                self.end_headers()
                self.wfile.write((text or "").encode())

            def do_PUT(self):
                self.answer("a-token" if self.path == "/latest/api/token" else None)

            def do_GET(self):
                # Without its token the metadata says nothing, as where IMDSv2 is required.
                if self.path.startswith("/latest/") and self.headers.get("X-aws-ec2-metadata-token") != "a-token":
                    return self.answer(None)
                found = machine.answers.get(self.path)
                self.answer(found() if callable(found) else found)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        (self.folder / "bin").mkdir()
        for name in ("systemctl", "aws"):
            command = self.folder / "bin" / name
            command.write_text(f'#!/bin/bash\necho "{name} $*" >> "{self.folder}/calls"\n')
            command.chmod(0o755)
        for secret in ("admin.key", "cluster.token"):
            (self.folder / secret).write_text("0123456789abcdef\n")

    def run(self, script, **settings):
        env = {
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
            "IMDS": self.url,
            "GATEWAY": self.url,
            "SCHEDULER": self.url,
            "STATE": str(self.folder),
            "POLL_SECONDS": "0.1",
        }
        return run(HERE / "aws" / script, env={**env, **settings})

    def calls(self):
        calls = self.folder / "calls"
        return calls.read_text().splitlines() if calls.exists() else []


class OnAws(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.machine = Machine(folder.name)
        self.addCleanup(self.machine.server.server_close)
        self.addCleanup(self.machine.server.shutdown)
        self.machine.answers["/latest/meta-data/instance-id"] = "i-1"

    def drain(self, role):
        done = self.machine.run("drain", ROLE=role, REGION="eu-central-1", GROUP=f"rekindle-{role}", DRAIN_SECONDS="60")
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    COMPLETE = (
        "aws autoscaling complete-lifecycle-action --region eu-central-1 --auto-scaling-group-name rekindle-{} "
        "--lifecycle-hook-name drain --lifecycle-action-result CONTINUE --instance-id i-1"
    )

    def test_a_spot_notice_stops_the_worker_and_ends_the_hook_s_wait(self):
        asked = iter([None, None, '{"action": "terminate", "time": "2026-01-01T00:00:00Z"}'])
        self.machine.answers["/latest/meta-data/spot/instance-action"] = lambda: next(asked)
        said = self.drain("worker")
        self.assertIn("a spot notice", said)
        self.assertEqual(
            self.machine.calls(), ["systemctl stop rekindle-worker.service", self.COMPLETE.format("worker")]
        )

    def test_while_a_role_takes_long_to_stop_the_hook_is_told_to_wait(self):
        # It stops once the hook was told twice, however long a busy machine takes for that.
        calls = self.machine.folder / "calls"
        (self.machine.folder / "bin/systemctl").write_text(
            f'#!/bin/bash\nfor _ in {{1..300}}; do [ "$(grep -c heartbeat "{calls}")" -ge 2 ] && break; sleep 0.1; '
            f'done 2> /dev/null\necho "systemctl $*" >> "{calls}"\n'
        )
        self.machine.answers["/latest/meta-data/autoscaling/target-lifecycle-state"] = "Terminated"
        done = self.machine.run(
            "drain",
            ROLE="worker",
            REGION="eu-central-1",
            GROUP="rekindle-worker",
            DRAIN_SECONDS="60",
            HEARTBEAT_SECONDS="0.2",
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        *waits, stopped, complete = self.machine.calls()
        self.assertGreaterEqual(len(waits), 2)
        self.assertEqual({w.split()[2] for w in waits}, {"record-lifecycle-action-heartbeat"})
        self.assertEqual(
            (stopped, complete), ("systemctl stop rekindle-worker.service", self.COMPLETE.format("worker"))
        )

    def test_a_gateway_that_its_group_lets_go_finishes_what_it_has_first(self):
        self.machine.answers["/latest/meta-data/autoscaling/target-lifecycle-state"] = "Terminated"
        left = iter([2, 1, 0])
        self.machine.answers["/metrics"] = lambda: (
            "# TYPE rekindle_gateway_in_flight gauge\nrekindle_gateway_in_flight_limit 4096\n"
            f"rekindle_gateway_in_flight {next(left)}\n"
        )
        said = self.drain("gateway")
        self.assertIn("2 in flight", said)
        self.assertIn("1 in flight", said)
        calls = self.machine.calls()
        self.assertEqual([c.split()[2] for c in calls if "heartbeat" in c], ["record-lifecycle-action-heartbeat"] * 2)
        self.assertEqual(calls[-2:], ["systemctl stop rekindle-gateway.service", self.COMPLETE.format("gateway")])

    def test_the_share_of_memory_that_is_promised_is_told(self):
        self.machine.answers["/metrics"] = (
            'rekindle_worker_memory_reserved_bytes{worker="a"} 1000\n'
            'rekindle_worker_memory_reserved_bytes{worker="b"} 5e2\n'
            'rekindle_worker_memory_capacity_bytes{worker="a"} 4000\n'
            'rekindle_worker_memory_capacity_bytes{worker="b"} 4000\n'
        )
        done = self.machine.run("cloudwatch", CLUSTER="rekindle", AWS_REGION="eu-central-1")
        self.assertEqual(done.returncode, 0, done.stderr)
        (call,) = self.machine.calls()
        self.assertTrue(
            call.endswith(
                "--namespace Rekindle --metric-name WorkerMemoryReserved --dimensions Cluster=rekindle "
                "--unit Percent --value 18.75"
            ),
            call,
        )

    def test_without_workers_nothing_is_told(self):
        self.machine.answers["/metrics"] = "rekindle_functions 0\n"
        self.assertEqual(self.machine.run("cloudwatch", CLUSTER="rekindle", AWS_REGION="eu-central-1").returncode, 0)
        self.assertEqual(self.machine.calls(), [])


if __name__ == "__main__":
    unittest.main()

"""The archives that runtimes/build.sh makes: whole, deterministic, and able to run what they are for. Needs root."""

import os
import re
import subprocess
import tarfile
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FUNCTIONS = Path(__file__).parents[2]
BUILD = FUNCTIONS / "runtimes/build.sh"
PYTHONS = {"python": "3.11", "python3.13": "3.13", "python3.14": "3.14"}
NODES = {"node": "18", "node20": "20", "node22": "22", "node24": "24"}
NAMES = ("base", *PYTHONS, *NODES)
CACHE = Path(os.environ.get("FN_CACHE", "/var/cache/rekindle"))


def archive(name):
    """Where a set-up keeps it, or beside those where the platforms of tests do not import it."""
    usual = name in ("base", "python", "node", "build")
    return CACHE / ("runtimes" if usual else "versions/runtimes") / f"{name}.tar"


def build(*arguments):
    return subprocess.run([BUILD, *map(str, arguments)], check=True, capture_output=True, text=True).stdout


@unittest.skipIf(os.getuid() != 0, "skipped: building root filesystems needs root")
class RootFilesystems(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.work = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        for name in NAMES:
            build(name, archive(name))
            (cls.work / name).mkdir()
            subprocess.run(["tar", "-xf", archive(name), "-C", cls.work / name], check=True)

    def inside(self, name, *command):
        """What `command` prints, run in the tree with nothing of the host's environment."""
        result = subprocess.run(
            [
                "chroot",
                "--userspec=1000:1000",
                self.work / name,
                "/usr/bin/env",
                "-i",
                "PATH=/usr/bin:/bin",
                "LANG=C.UTF-8",
                *command,
            ],
            capture_output=True,
            text=True,
        )
        self.assertEqual(0, result.returncode, result.stderr)
        return result.stdout

    def test_a_second_build_gives_the_same_bytes_and_a_third_does_nothing(self):
        for name in ("base", "python"):
            first, again = self.work / f"{name}-first.tar", self.work / f"{name}-again.tar"
            for tar in (first, again):
                build("--force", name, tar)
            self.assertEqual(0, subprocess.run(["cmp", first, again]).returncode, name)
            self.assertIn("is up to date", build(name, again))
            first.unlink()
            again.unlink()

    def test_hold_what_a_function_needs_and_nothing_of_the_host(self):
        for name in NAMES:
            with tarfile.open(archive(name)) as opened:
                members = {member.name: member for member in opened}
            for folder in ("app", "tmp", "proc", "dev", "run", "sys"):
                self.assertTrue(members[f"./{folder}"].isdir(), folder)
                self.assertFalse([path for path in members if path.startswith(f"./{folder}/")], folder)
            for path in (
                "etc/passwd",
                "etc/hosts",
                "etc/resolv.conf",
                "etc/nsswitch.conf",
                "etc/ssl/certs/ca-certificates.crt",
                "usr/bin/sh",
                "opt/rekindle/packages",
            ):
                self.assertIn(f"./{path}", members)
            for path in (
                "usr/share/doc",
                "usr/share/man",
                "usr/share/locale",
                "var/lib",
                "usr/bin/apt",
                "usr/bin/dpkg",
                "usr/bin/perl",
            ):
                self.assertNotIn(f"./{path}", members)
            for member in members.values():
                self.assertEqual((0, 0, 1700000000), (member.uid, member.gid, member.mtime), member.name)
                self.assertFalse(member.isdev(), member.name)
                if not member.issym():
                    self.assertFalse(member.mode & 0o6000, member.name)
                    self.assertTrue(member.mode & 0o004, member.name)
            self.assertEqual("/proc/sys/kernel/hostname", os.readlink(self.work / name / "etc/hostname"))
            self.assertIn("fn:x:1000:1000:", (self.work / name / "etc/passwd").read_text())

    def test_base_has_a_shell_and_the_usual_commands(self):
        self.assertEqual(
            "3\n", self.inside("base", "sh", "-c", "printf 'a\\nb\\nc\\n' | sort | tail -n 3 | awk 'END { print NR }'")
        )
        self.assertEqual("fn\n", self.inside("base", "id", "-un"))
        self.assertIn("UTC", self.inside("base", "date"))

    def test_python_runs_with_tls_roots_time_zones_and_never_compiles(self):
        script = (
            "import ssl, sqlite3, zoneinfo, ctypes, lzma, bz2, decimal, asyncio, sys, importlib.util as u;"
            "import json, rekindle_runtime.server as s;"
            "assert len(ssl.create_default_context().get_ca_certs()) > 100;"
            "zoneinfo.ZoneInfo('Europe/Paris');"
            "data = open(s.__cached__, 'rb').read(8);"
            "print(sys.version_info[:2], data[4:8])"
        )
        for name, version in PYTHONS.items():
            printed = self.inside(name, "env", "PYTHONPATH=/opt/rekindle/python", "/usr/bin/python3", "-c", script)
            major, minor = version.split(".")
            # Flags 1: the pyc is hash-based and never checked against its source.
            self.assertEqual(f"({major}, {minor}) b'\\x01\\x00\\x00\\x00'\n", printed)
            sources = [path for path in (self.work / name / f"usr/lib/python{version}").rglob("*.py")]
            compiled = f"cpython-{major}{minor}.pyc"
            missing = [
                path for path in sources if not Path(path.parent, "__pycache__", f"{path.stem}.{compiled}").exists()
            ]
            self.assertEqual([], missing)

    def test_node_runs_and_can_reseed_openssl(self):
        script = (
            "require('/opt/rekindle/node/reseed.node').add(Buffer.from('x')); "
            "console.log(process.versions.node.split('.')[0], typeof require('rekindle').afterRestore)"
        )
        for name, version in NODES.items():
            self.assertEqual(
                f"{version} function\n", self.inside(name, "sh", "-c", f'cd /app && /usr/bin/node -e "{script}"')
            )
            self.assertEqual(name != "node", (self.work / name / "opt/rekindle/licenses/node/LICENSE").exists())

    def test_the_bootstraps_pass_their_tests_on_every_interpreter(self):
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(self.bootstrap_passes, (*PYTHONS, *NODES)))

    def bootstrap_passes(self, name):
        tree = self.work / name
        for part in ("runtimes", "tests"):
            subprocess.run(["cp", "-a", "--parents", part, tree / "app"], check=True, cwd=FUNCTIONS)
        language, program = ("python", "python3 -m unittest") if name in PYTHONS else ("node", "node --test")
        # With a network of its own, in which no other test takes a port that was found free.
        script = (
            'ip link set lo up && mount --rbind /dev "$0/dev" && mount -t proc proc "$0/proc" && '
            'exec chroot --userspec=1000:1000 "$0" "$@"'
        )
        environment = [
            "/usr/bin/env",
            "-i",
            "PATH=/usr/bin:/bin",
            "HOME=/tmp",
            "LANG=C.UTF-8",
            "PYTHONDONTWRITEBYTECODE=1",
        ]
        result = subprocess.run(
            [
                "unshare",
                "--net",
                "--mount",
                "--pid",
                "--fork",
                "--kill-child",
                "sh",
                "-c",
                script,
                tree,
                *environment,
                "sh",
                "-c",
                f"cd /app/tests/{language} && exec {program}",
            ],
            capture_output=True,
            text=True,
        )
        self.assertEqual(0, result.returncode, f"{name}: {result.stdout[-4000:]}{result.stderr[-4000:]}")
        self.assertRegex(result.stdout + result.stderr, r"(Ran|tests) [1-9]")

    def test_what_installs_dependencies_runs_on_every_interpreter(self):
        build("build", archive("build"))
        for name in (*PYTHONS, *NODES):
            with tempfile.TemporaryDirectory() as both:
                subprocess.run(["cp", "-a", f"{self.work / name}/.", both], check=True)
                subprocess.run(["tar", "-xf", archive("build"), "-C", both], check=True)
                # setuptools builds the packages that bring no wheel.
                script = "from setuptools import build_meta; import runpy; runpy.run_module('pip', run_name='__main__')"
                program = ["/usr/bin/python3", "-I", "-c", script] if name in PYTHONS else ["/usr/bin/npm"]
                result = subprocess.run(
                    ["chroot", both, "/usr/bin/env", "-i", "PATH=/usr/bin:/bin", "HOME=/tmp", *program, "--version"],
                    capture_output=True,
                    text=True,
                )
                self.assertEqual(0, result.returncode, f"{name}: {result.stderr}")

    def test_an_archive_that_is_not_the_expected_one_is_refused(self):
        copy = self.work / "runtimes"
        subprocess.run(["cp", "-a", BUILD.parent, copy], check=True)
        version = copy / "versions/node24"
        package = self.work / "package"
        package.mkdir()
        (package / "package.json").write_text('{ "name": "other", "version": "1.0.0" }')
        version.write_text(re.sub("(?m)^npm=.*", f"npm={package}", version.read_text()))
        result = subprocess.run([copy / "build.sh", "node24", self.work / "other.tar"], capture_output=True, text=True)
        self.assertEqual(1, result.returncode)
        self.assertIn("is not the archive that versions/node24 expects", result.stderr)
        self.assertFalse((self.work / "other.tar").exists())


if __name__ == "__main__":
    unittest.main()

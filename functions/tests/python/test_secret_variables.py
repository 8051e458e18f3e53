"""Secrets that come, change and go as files, and are environment variables."""

import os
import sys
import tempfile
import unittest

from bootstrap_process import RUNTIME

sys.path.append(str(RUNTIME))
from rekindle_runtime import secret_variables  # noqa: E402


class SecretVariables(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = secret_variables.FOLDER = folder.name
        secret_variables.CHANGED = os.path.join(folder.name, ".changed")
        secret_variables._seen, secret_variables._names = None, set()
        for name in ("ONE", "TWO", "BINARY"):
            self.addCleanup(os.environ.pop, name, None)

    def write(self, **files):
        for name in os.listdir(self.folder):
            if name not in files:
                os.remove(os.path.join(self.folder, name))
        for name, value in {**files, ".changed": b""}.items():
            new = os.path.join(self.folder, ".new")
            with open(new, "wb") as file:
                file.write(value)
            os.rename(new, os.path.join(self.folder, name))

    def test_are_what_the_files_say_after_each_change(self):
        secret_variables.begin()
        self.assertNotIn("ONE", os.environ)
        self.write(ONE=b"1", TWO=b"2\n", BINARY=b"\xff\x00")
        secret_variables.refresh()
        self.assertEqual(("1", "2\n"), (os.environ["ONE"], os.environ["TWO"]))
        self.assertNotIn("BINARY", os.environ)
        self.write(ONE=b"another")
        secret_variables.refresh()
        self.assertEqual("another", os.environ["ONE"])
        self.assertNotIn("TWO", os.environ)

    def test_are_not_looked_for_where_there_is_no_folder(self):
        secret_variables.FOLDER = os.path.join(self.folder, "none")
        secret_variables.begin()
        self.write(ONE=b"1")
        secret_variables.refresh()
        self.assertNotIn("ONE", os.environ)


if __name__ == "__main__":
    unittest.main()

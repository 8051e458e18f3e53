"""A function that is loaded after its bootstrap has begun to serve."""

import http.client
import json
import os
import unittest

from bootstrap_process import LIMIT_S, Bootstrap

FILES = {
    "main.py": """
        import os, signal, threading
        here = threading.current_thread() is threading.main_thread()
        signal.signal(signal.SIGUSR1, lambda *_: None)

        def handler(event, context):
            return {"main thread": here, "name": context.function_name, "environment": sorted(os.environ)}
    """,
    "broken.py": "import nothing_of_this_name\n",
}
LATER = {"FN_LOAD": "later", "ONLY_BEFORE": "1"}


def load(bootstrap, entry, **more):
    environment = {"FN_HANDLER": entry, "FN_NAME": "late", **more}
    return bootstrap.request("/.rekindle/load", "POST", json.dumps({"env": environment}))


class LoadingLater(unittest.TestCase):
    def test_serves_no_function_until_one_is_loaded(self):
        with Bootstrap(FILES, env=LATER) as bootstrap:
            self.assertEqual(
                (503, "Runtime.NotLoaded"), (bootstrap.event({}).status, bootstrap.event({}).json["errorType"])
            )
            self.assertEqual(200, bootstrap.hook("before-snapshot").status)
            self.assertEqual(200, bootstrap.hook("after-restore").status)
            self.assertEqual(200, load(bootstrap, "main.handler", OWN="2").status)
            answer = bootstrap.event({}).json
            self.assertEqual(
                {"main thread": True, "name": "late", "environment": ["FN_HANDLER", "FN_NAME", "OWN"]}, answer
            )
            with open(f"/proc/{bootstrap.process.pid}/environ", "rb") as environment:
                self.assertNotIn(b"OWN", environment.read())
            self.assertEqual(409, load(bootstrap, "main.handler").status)

    def test_finds_files_that_came_after_it_began(self):
        with Bootstrap({}, env=LATER) as bootstrap:
            folder = os.readlink(f"/proc/{bootstrap.process.pid}/cwd")
            with open(os.path.join(folder, "main.py"), "w") as file:
                file.write("def handler(event, context):\n    return 'late'\n")
            self.assertEqual(200, load(bootstrap, "main.handler").status)
            self.assertEqual("late", bootstrap.event({}).json)

    def test_ends_where_the_function_cannot_be_loaded(self):
        for entry, reason in (
            ("missing.handler", "there is no module 'missing'"),
            ("broken.handler", "nothing_of_this_name"),
        ):
            with Bootstrap(FILES, env=LATER) as bootstrap:
                with self.assertRaises((http.client.HTTPException, ConnectionError)):
                    load(bootstrap, entry)
                self.assertEqual(1, bootstrap.process.wait(timeout=LIMIT_S))
                self.assertIn(reason, bootstrap.output())

    def test_says_what_it_cannot_read(self):
        with Bootstrap(FILES, env=LATER) as bootstrap:
            for body in (b"", b"{", b"[]", b'{"env": []}', b'{"env": {"A": 1}}'):
                self.assertEqual(400, bootstrap.request("/.rekindle/load", "POST", body).status, body)
            self.assertEqual(200, load(bootstrap, "main.handler").status)

    def test_is_nothing_for_a_function_that_was_loaded_first(self):
        with Bootstrap(FILES) as bootstrap:
            self.assertEqual(409, load(bootstrap, "main.handler").status)


if __name__ == "__main__":
    unittest.main()

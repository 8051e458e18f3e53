"""The platform's calls around a snapshot."""

import unittest

from bootstrap_process import Bootstrap

HOOKS = {
    "main.py": """
        import asyncio, gc, os, random, tempfile, ssl, uuid
        import rekindle

        seen = []

        @rekindle.before_snapshot
        def first():
            seen.append("before 1")

        @rekindle.before_snapshot
        async def second():
            await asyncio.sleep(0)
            seen.append("before 2")

        @rekindle.after_restore
        def third():
            seen.append("after 1")
            if os.path.exists("fail"):
                raise OSError("no database")

        @rekindle.after_restore
        async def fourth():
            seen.append("after 2")

        def handler(event, context):
            if event == "fail":
                open("fail", "w").close()
            if event == "seed":
                random.seed(1)
            if event == "draw":
                return random.random()
            if event == "frozen":
                return gc.get_freeze_count()
            return seen
    """,
    # What AWS's library for SnapStart hooks holds.
    "snapshot_restore_py.py": """
        before, after = [], []
        def register_before_snapshot(function, *args, **kwargs):
            before.append((function, args, kwargs))
        def register_after_restore(function, *args, **kwargs):
            after.append((function, args, kwargs))
        def get_before_snapshot():
            return before
        def get_after_restore():
            return after
    """,
    "aws.py": """
        from snapshot_restore_py import register_before_snapshot, register_after_restore
        seen = []
        register_before_snapshot(seen.append, "before")
        register_after_restore(lambda word, times: seen.extend([word] * times), "after", times=2)
        def handler(event, context):
            return seen
    """,
}


class Hooks(unittest.TestCase):
    def setUp(self):
        self.function = self.enterContext(Bootstrap(HOOKS))

    def test_run_in_their_order_sync_and_async(self):
        self.assertEqual(
            (200, {}), (self.function.hook("before-snapshot").status, self.function.hook("after-restore").json)
        )
        self.assertEqual(["before 2", "before 1", "after 1", "after 2"], self.function.event("").json)

    def test_that_fail_give_the_reason_and_stop_the_rest(self):
        self.function.event("fail")
        answer = self.function.hook("after-restore")
        self.assertEqual((500, "Runtime.HookFailed"), (answer.status, answer.json["errorType"]))
        self.assertEqual("after_restore hook 'third' failed: OSError: no database", answer.json["errorMessage"])
        self.assertEqual(["after 1"], self.function.event("").json)
        self.assertIn("OSError: no database", self.function.output())

    def test_answer_to_post_only_and_the_prefix_is_no_wildcard(self):
        self.assertEqual(405, self.function.request("/.rekindle/after-restore").status)
        self.assertEqual([], self.function.request("/.rekindle/other", "POST").json)

    def test_freeze_the_heap_before_a_snapshot(self):
        self.assertEqual(0, self.function.event("frozen").json)
        self.function.hook("before-snapshot")
        self.assertGreater(self.function.event("frozen").json, 1000)

    def test_reseed_random_after_a_restore(self):
        # Two copies of one snapshot: the same state, then each restored.
        draws = []
        for _ in range(2):
            self.function.event("seed")
            self.function.hook("after-restore")
            draws.append(self.function.event("draw").json)
        self.function.event("seed")
        self.assertNotIn(self.function.event("draw").json, draws)
        self.assertNotEqual(draws[0], draws[1])

    def test_registered_with_awss_library_run_too(self):
        with Bootstrap(HOOKS, "aws.handler") as function:
            function.hook("before-snapshot")
            function.hook("after-restore")
            self.assertEqual(["before", "after", "after"], function.event("").json)


SOURCES = """
    import os, random, ssl, sqlite3, tempfile, uuid
    import rekindle

    database = sqlite3.connect(":memory:", check_same_thread=False)

    def handler(event, context):
        if event == "reseed":
            rekindle.reseed()
        return [random.getstate()[1][:4], uuid.uuid1().node, tempfile.mktemp(),
                database.execute("select random()").fetchone()]
"""


class Reseeding(unittest.TestCase):
    # What needs two copies of one memory to show is shown by the platform's own tests (tests/tests/clones.rs).
    def test_changes_what_is_kept_in_memory(self):
        with Bootstrap({"main.py": SOURCES}) as function:
            before = function.event("").json
            self.assertEqual(before[:2], function.event("").json[:2])
            for again in (lambda: function.event("reseed"), lambda: function.hook("after-restore")):
                again()
                after = function.event("").json
                for old, new in zip(before, after):
                    self.assertNotEqual(old, new)
                before = after

    def test_is_rehearsed_before_a_snapshot(self):
        # So that OpenSSL's generator is made, and the code warm, in the memory that copies start from.
        with Bootstrap({"main.py": SOURCES}) as function:
            before = function.event("").json
            function.hook("before-snapshot")
            for old, new in zip(before, function.event("").json):
                self.assertNotEqual(old, new)

    def test_makes_the_node_of_uuid1_one_that_is_no_network_card(self):
        with Bootstrap({"main.py": SOURCES}) as function:
            function.hook("after-restore")
            node = function.event("").json[1]
            self.assertTrue(node >> 40 & 1 and node < 1 << 48, hex(node))


if __name__ == "__main__":
    unittest.main()

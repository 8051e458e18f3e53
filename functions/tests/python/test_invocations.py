"""Event invocations, the context, handler styles, and every way an invocation fails."""

import os
import threading
import time
import unittest

from bootstrap_process import LIMIT_S, Bootstrap, run_to_end

HANDLERS = {
    "main.py": """
        import asyncio, os, sys, threading, time
        import rekindle

        def echo(event, context):
            return event

        def describe(event, context):
            return {name: getattr(context, name) for name in (
                "function_name", "function_version", "memory_limit_in_mb", "aws_request_id", "traceparent",
                "log_group_name", "log_stream_name", "invoked_function_arn",
            )} | {"remaining": context.get_remaining_time_in_millis()}

        async def slow(event, context):
            await asyncio.sleep(event["seconds"])
            return id(asyncio.get_running_loop())

        class Odd(Exception):
            def __str__(self):
                raise RuntimeError("no text")

        def fail(event, context):
            if event == "odd":
                raise Odd()
            if event == "exit":
                sys.exit(3)
            inner(event)

        def inner(event):
            raise ValueError(f"bad {event}")

        # As LIMIT_S of the tests.
        waiting = threading.Barrier(2, timeout=300)
        def meet(event, context):
            waiting.wait()
            return "met"

        def talk(event, context):
            print("to stdout", event)
            print("to stderr", event, file=sys.stderr)
            sys.stdout.write("partial ")
    """,
    "package/deep.py": """
        import main
        from helper import NAME
        def handler(event, context):
            return NAME
    """,
    ".rekindle/python/helper.py": "NAME = 'installed'",
}


class Events(unittest.TestCase):
    def test_the_body_is_the_event_and_the_answer_its_value_as_json(self):
        with Bootstrap(HANDLERS, "main.echo") as function:
            answer = function.event({"statusCode": 404, "ü": [1, None]})
            self.assertEqual((200, "application/json"), (answer.status, answer.headers["content-type"]))
            self.assertEqual({"statusCode": 404, "ü": [1, None]}, answer.json)

    def test_an_empty_body_is_an_empty_object_and_one_that_is_no_json_is_refused(self):
        with Bootstrap(HANDLERS, "main.echo") as function:
            self.assertEqual({}, function.request("/", "POST", headers={"x-fn-invocation": "event"}).json)
            for body in ("{", "\xff".encode("latin-1"), "[" * 100_000):
                answer = function.request("/", "POST", body, {"x-fn-invocation": "event"})
                self.assertEqual((400, "Runtime.InvalidEvent"), (answer.status, answer.json["errorType"]))
                self.assertIn("not JSON", answer.json["errorMessage"])
                self.assertNotIn("x-fn-function-error", answer.headers)

    def test_the_context_has_lambdas_attributes(self):
        with Bootstrap(HANDLERS, "main.describe") as function:
            deadline = int(time.time() * 1000) + 5000
            context = function.event(
                {}, {"x-request-id": "r-9", "traceparent": "00-ab-cd-01", "x-fn-deadline-ms": str(deadline)}
            ).json
            self.assertEqual(
                ("greet", "7", "256", "r-9", "00-ab-cd-01"),
                tuple(
                    context[name]
                    for name in (
                        "function_name",
                        "function_version",
                        "memory_limit_in_mb",
                        "aws_request_id",
                        "traceparent",
                    )
                ),
            )
            self.assertTrue(0 < context["remaining"] <= 5000, context["remaining"])
            self.assertEqual(8, len(context["invoked_function_arn"].split(":")))
            self.assertEqual(0, function.event({}, {"x-fn-deadline-ms": "1"}).json["remaining"])
            self.assertTrue(29_000 < function.event({}).json["remaining"] <= 30_000)


class Handlers(unittest.TestCase):
    def test_may_be_async_and_share_one_event_loop(self):
        with Bootstrap(HANDLERS, "main.slow") as function:
            self.assertEqual(function.event({"seconds": 0}).json, function.event({"seconds": 0.01}).json)

    def test_may_lie_in_a_package_named_with_dots_or_slashes_and_use_installed_packages(self):
        for entry in ("package.deep.handler", "package/deep.handler"):
            with Bootstrap(HANDLERS, entry) as function:
                self.assertEqual("installed", function.event({}).json, entry)

    def test_run_at_the_same_time_on_several_connections(self):
        with Bootstrap(HANDLERS, "main.meet") as function:
            answers = []
            threads = [threading.Thread(target=lambda: answers.append(function.event({}).json)) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(["met", "met"], answers)

    def test_that_print_are_heard_at_once_line_by_line(self):
        with Bootstrap(HANDLERS, "main.talk") as function:
            function.event("one")
            output = function.output()
            self.assertIn("to stdout one\n", output)
            self.assertIn("to stderr one\n", output)
            self.assertIn("partial ", output)

    def test_print_each_line_by_one_write_so_that_threads_do_not_mix(self):
        for options in ((), ("-u",)):
            # A pipe in packet mode gives back what one write put in.
            reader, writer = os.pipe2(os.O_DIRECT)
            with Bootstrap(HANDLERS, "main.talk", output=writer, options=options) as function:
                os.close(writer)
                function.event("one")
                packets = []
                while b"partial " not in packets:
                    packets.append(os.read(reader, 65536))
                self.assertIn(b"to stdout one\n", packets)
                self.assertIn(b"to stderr one\n", packets)
            os.close(reader)


class Failures(unittest.TestCase):
    def test_an_exception_is_a_500_with_type_message_and_the_users_frames(self):
        with Bootstrap(HANDLERS, "main.fail") as function:
            answer = function.event("input")
            self.assertEqual((500, "Unhandled"), (answer.status, answer.headers["x-fn-function-error"]))
            self.assertEqual(("ValueError", "bad input"), (answer.json["errorType"], answer.json["errorMessage"]))
            trace = answer.json["stackTrace"]
            self.assertEqual(2, len(trace), trace)
            self.assertIn("in fail", trace[0])
            self.assertIn("in inner", trace[1])
            self.assertIn("Traceback (most recent call last):", function.output())
            self.assertIn("ValueError: bad input", function.output())
            # The process serves on.
            self.assertEqual(500, function.request("/").status)

    def test_an_exception_without_text_is_answered_too(self):
        with Bootstrap(HANDLERS, "main.fail") as function:
            self.assertEqual("Odd", function.event("odd").json["errorType"])

    def test_a_handler_that_exits_is_answered_and_then_the_process_ends(self):
        with Bootstrap(HANDLERS, "main.fail") as function:
            self.assertEqual("Runtime.ExitError", function.event("exit").json["errorType"])
            self.assertEqual(1, function.process.wait(timeout=LIMIT_S))

    def test_a_handler_that_cannot_be_had_ends_the_process_with_code_1_and_the_reason(self):
        broken = {
            "main.py": "import missing_package",
            "late.py": "raise ValueError('too late')",
            "quits.py": "import sys; sys.exit(0)",
            "value.py": "handler = 3",
        }
        for entry, reason in (
            ("main.handler", "No module named 'missing_package'"),
            ("late.handler", "ValueError: too late"),
            ("quits.handler", "failed while it was imported"),
            ("absent.handler", "there is no module 'absent'"),
            ("value.other", "has no 'other'"),
            ("value.handler", "cannot be called"),
            ("handler", "not of the form"),
        ):
            code, output = run_to_end(broken, entry)
            self.assertEqual(1, code, entry)
            self.assertIn(reason, output, entry)


if __name__ == "__main__":
    unittest.main()

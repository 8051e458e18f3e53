"""The `context` argument of a handler: AWS Lambda's attributes, and the W3C trace context."""

import os
import time

from . import invoke


class Context:
    """One per invocation. Everything but the request's own values comes from the environment, read once, when the
    function is loaded."""

    identity = None
    client_context = None

    @classmethod
    def read_environment(cls):
        """Takes over what the environment says of the function."""
        name, version = os.environ.get("FN_NAME", "function"), os.environ.get("FN_VERSION", "0")
        cls.function_name, cls.function_version = name, version
        # A string, as on Lambda.
        cls.memory_limit_in_mb = os.environ.get("FN_MEMORY_MIB", "128")
        # Shaped like Lambda's, for code that splits it; no such resource exists.
        cls.invoked_function_arn = f"arn:rekindle:lambda:local:000000000000:function:{name}:{version}"
        cls.log_group_name = f"/rekindle/{name}"
        cls.log_stream_name = f"{name}/{version}"
        cls._timeout_ms = int(float(os.environ.get("FN_TIMEOUT_S", "30")) * 1000)

    def __init__(self, request):
        headers = request.headers
        self.aws_request_id = headers.get("x-request-id", "")
        self.traceparent = headers.get("traceparent")
        deadline = headers.get("x-fn-deadline-ms", "")
        self._epoch_deadline_time_in_ms = int(deadline) if deadline.isdecimal() else _now_ms() + self._timeout_ms

    def get_remaining_time_in_millis(self):
        """Milliseconds until the platform gives up on this invocation; 0 once that time has passed."""
        return max(0, self._epoch_deadline_time_in_ms - _now_ms())

    def invoke(self, function, payload=None, timeout=None):
        """The result of another function of the same namespace for `payload`, as JSON each. Waits at most `timeout`
        seconds, and never longer than this invocation has left. Raises rekindle.InvokeError."""
        return invoke.now(function, payload, self.traceparent, self._seconds(timeout))

    def invoke_async(self, function, payload=None):
        """Has another function of the same namespace run later with `payload`. Returns the id of that invocation.
        Raises rekindle.InvokeError."""
        return invoke.later(function, payload, self.traceparent, self._seconds(None))

    def _seconds(self, timeout):
        # The platform ends the call by then; what it says is better than a timeout of the socket's.
        left = self.get_remaining_time_in_millis() / 1000 + 1
        return left if timeout is None else min(timeout, left)

    def log(self, message):
        """Writes `message` to the function's log."""
        print(message)

    def __repr__(self):
        return f"Context({self.function_name}:{self.function_version}, aws_request_id={self.aws_request_id!r})"


def _now_ms():
    return time.time_ns() // 1_000_000

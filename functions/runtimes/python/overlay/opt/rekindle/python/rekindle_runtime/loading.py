"""A function that is loaded when the worker says so: the call comes on a thread that serves, the main thread loads."""

import json
import threading

from .http1 import Response
from .payload import JSON_TYPE, error_response


class Loading:
    """Waited for by the main thread, asked for by a thread that serves; once."""

    def __init__(self):
        self._lock = threading.Lock()
        self._asked = threading.Event()
        self._loaded = threading.Event()
        self._environment = {}

    def ask(self, request):
        """Handles POST /.rekindle/load: {"env": {name: value}}. Answered when the function is loaded; where it cannot
        be, the process ends and nobody is answered."""
        try:
            environment = json.loads(request.body)["env"]
            usable = all(isinstance(text, str) for item in environment.items() for text in item)
        except (ValueError, TypeError, KeyError, AttributeError):
            usable = False
        if not usable:
            return error_response(400, "Runtime.BadRequest", 'send {"env": {"NAME": "value"}}')
        with self._lock:
            if self._asked.is_set() or self._loaded.is_set():
                return error_response(409, "Runtime.BadRequest", "a function is loaded already")
            self._environment = environment
            self._asked.set()
        self._loaded.wait()
        return Response(200, [JSON_TYPE], b"{}")

    def wait(self):
        """The environment that the function is to have, once it is asked for."""
        self._asked.wait()
        return self._environment

    def loaded(self):
        """It is loaded."""
        self._loaded.set()

"""One invocation: request in, the user's handler, response out. Every way it can fail has its own answer."""

import json
import sys
import traceback

from . import cloud_events, handler, secret_variables
from .context import Context
from .http1 import Response
from .payload import JSON_TYPE, InvalidResponse, error_response, http_event, http_response, to_json

FUNCTION_ERROR = ("x-fn-function-error", "Unhandled")


class Function:
    """The user's handler, behind HTTP, once it is loaded. Called from several threads at once where concurrency is
    above one."""

    def __init__(self):
        self.handler = None

    def invoke(self, request):
        """The response to `request`. Raises nothing that the user's code raised."""
        if self.handler is None:
            return error_response(503, "Runtime.NotLoaded", "no function is loaded yet")
        secret_variables.refresh()
        is_event, cloud_event = request.headers.get("x-fn-invocation") == "event", None
        if is_event:
            try:
                # An invocation without a payload is one with an empty object, as on Lambda.
                event = json.loads(request.body) if request.body.strip() else {}
            except (ValueError, RecursionError) as error:
                why = f"the event is not JSON: {error}; send a JSON document as the body"
                return error_response(400, "Runtime.InvalidEvent", why)
        else:
            try:
                cloud_event = cloud_events.received(request)
            except cloud_events.InvalidEvent as error:
                return error_response(400, "Runtime.InvalidEvent", str(error))
            event = http_event(request) if cloud_event is None else cloud_event
        try:
            value = handler.call(self.handler, event, Context(request))
        except SystemExit as error:
            print(f"rekindle: the handler called sys.exit({error.code!r}); the instance ends", file=sys.stderr)
            return _function_error("Runtime.ExitError", f"the handler called sys.exit({error.code!r})", close=True)
        except BaseException as error:
            return _raised(error)
        finally:
            # A partial line is not left behind for the next invocation to finish.
            sys.stdout.flush()
            sys.stderr.flush()
        try:
            if is_event:
                return Response(200, [JSON_TYPE], to_json(value))
            answer = None if cloud_event is None else cloud_events.response(value, request)
            return http_response(value) if answer is None else answer
        except InvalidResponse as error:
            kind, message = "Runtime.InvalidResponse", str(error)
        except Exception as error:
            kind, message = "Runtime.MarshalError", f"the handler's return value cannot be sent as JSON: {error}"
        print(f"rekindle: {message}", file=sys.stderr)
        return _function_error(kind, message)


def _raised(error):
    # The frames up to the user's own are ours.
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in _OWN_FILES:
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace)
    sys.stderr.write("".join(lines))
    return _function_error(type(error).__name__, _text_of(error), traceback.format_tb(trace))


def _text_of(error):
    try:
        return str(error)
    except Exception as again:
        return f"the exception cannot be shown: {again!r}"


def _function_error(kind, message, trace=(), close=False):
    return error_response(500, kind, message, trace, [FUNCTION_ERROR], close)


_OWN_FILES = (__file__, handler.__file__)

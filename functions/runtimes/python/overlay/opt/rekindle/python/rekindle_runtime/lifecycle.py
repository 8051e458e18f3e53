"""Around snapshots: runs the user's hooks, makes memory worth keeping, and has restored copies differ where they
must."""

import gc
import json
import sys
import traceback

import rekindle

from . import handler, randomness, secret_variables
from .http1 import Response
from .payload import JSON_TYPE, error_response


class HookFailed(Exception):
    """A hook raised; the message names it and says what it raised."""


def before_snapshot(_request):
    """Handles POST /.rekindle/before-snapshot."""

    def work():
        _run(reversed(rekindle._before_snapshot + _lambda_hooks("get_before_snapshot")), "before_snapshot")
        randomness.prepare()
        sys.stdout.flush()
        sys.stderr.flush()
        gc.collect()
        # Frozen objects are left alone by later collections, so restored copies do not dirty pages by marking them.
        gc.freeze()
        # Where nothing is left for it the platform does not call the hook.
        hooks = rekindle._after_restore + _lambda_hooks("get_after_restore")
        return {"afterRestore": {"hooks": len(hooks), "reseeds": randomness.kinds()}}

    return _answer(work)


def after_restore(request):
    """Handles POST /.rekindle/after-restore."""

    def work():
        # What the platform has reseeded before this process ran.
        randomness.reseed(request.headers.get("x-fn-reseeded", ""))
        secret_variables.refresh()
        _run(rekindle._after_restore + _lambda_hooks("get_after_restore"), "after_restore")

    return _answer(work)


def _lambda_hooks(getter):
    """Hooks registered as entries (function, args, kwargs) with AWS's own library for SnapStart, if the function brings
    it."""
    library = sys.modules.get("snapshot_restore_py")
    if library is None or not hasattr(library, getter):
        return []
    return [_bound(*entry) for entry in getattr(library, getter)()]


def _bound(function, arguments, keywords):
    def hook():
        return function(*arguments, **keywords)

    hook.__qualname__ = getattr(function, "__qualname__", repr(function))
    return hook


def _run(hooks, kind):
    for hook in hooks:
        try:
            handler.call(hook)
        except BaseException as error:
            traceback.print_exc()
            name = getattr(hook, "__qualname__", repr(hook))
            raise HookFailed(f"{kind} hook '{name}' failed: {type(error).__name__}: {error}") from None


def _answer(work):
    try:
        answer = work() or {}
    except HookFailed as error:
        return error_response(500, "Runtime.HookFailed", str(error))
    return Response(200, [JSON_TYPE], json.dumps(answer).encode())

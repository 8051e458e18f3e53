"""Entry point of the python runtime: loads the handler named by FN_HANDLER, then serves it on 127.0.0.1:$PORT.

The contract is docs/reference/runtime-contract.md. A handler that cannot be loaded ends the process with code 1 before
it listens. With FN_LOAD=later it listens first, and loads what the worker's POST /.rekindle/load says: what it is until
then is the same for all functions, so that their snapshots may be differences to one of it.
"""

import importlib
import os
import signal
import sys
import traceback


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    # The function's own modules come first, as on AWS Lambda; ours last, and they are loaded below before user code
    # runs.
    sys.path[:] = [entry for entry in sys.path if entry != here] + [here]
    import rekindle  # noqa: F401  (so that no file of the user's can take its place)
    from rekindle_runtime import lifecycle, server
    from rekindle_runtime.invocation import Function
    from rekindle_runtime.loading import Loading

    # A line is written as soon as it is complete, and by one write, so that lines of several threads do not mix.
    # (`python -u` alone writes print's text and its line break one after the other.)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, write_through=False)

    function, loading = Function(), Loading()
    routes = {
        "/.rekindle/load": loading.ask,
        "/.rekindle/before-snapshot": lifecycle.before_snapshot,
        "/.rekindle/after-restore": lifecycle.after_restore,
    }
    later = os.environ.pop("FN_LOAD", "") == "later"
    if not later:
        load(function)
        loading.loaded()
    server.listen(int(os.environ.get("PORT", "8080")), function, routes)
    if later:
        os.environ.clear()
        os.environ.update(loading.wait())
        load(function)
        loading.loaded()
    while True:
        signal.pause()


def load(function):
    """Loads the handler that FN_HANDLER names into `function`, on the main thread, as modules expect; or ends the
    process."""
    from rekindle_runtime import handler, secret_variables
    from rekindle_runtime.context import Context

    Context.read_environment()
    secret_variables.begin()
    app = os.getcwd()
    sys.path[:0] = [app, os.path.join(app, ".rekindle", "python")]
    # What was seen of these folders before may have been another function's.
    importlib.invalidate_caches()
    name = os.environ.get("FN_HANDLER", "")
    try:
        function.handler = handler.load(name)
    except handler.HandlerNotFound as error:
        sys.exit(f"rekindle: {error}")
    except BaseException:
        traceback.print_exc()
        sys.exit(f"rekindle: the module of handler '{name}' failed while it was imported")


if __name__ == "__main__":
    main()

"""Entry point of the python runtime: loads the handler named by FN_HANDLER, then serves it on 127.0.0.1:$PORT.

The contract is docs/runtime-contract.md. A handler that cannot be loaded ends the process with code 1 before it listens.
"""

import os
import sys
import traceback


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    app = os.getcwd()
    # The function's own modules come first, as on AWS Lambda; ours last, and they are loaded below before user code runs.
    sys.path[:] = [entry for entry in sys.path if entry != here] + [here]
    import rekindle  # noqa: F401  (so that no file of the user's can take its place)
    from rekindle_runtime import handler, lifecycle, server
    from rekindle_runtime.invocation import Function

    sys.path[:0] = [app, os.path.join(app, ".rekindle", "python")]
    # A line is written as soon as it is complete, and by one write, so that lines of several threads do not mix. (`python -u`
    # alone writes print's text and its line break one after the other.)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, write_through=False)

    try:
        user_handler = handler.load(os.environ.get("FN_HANDLER", ""))
    except handler.HandlerNotFound as error:
        sys.exit(f"rekindle: {error}")
    except BaseException:
        traceback.print_exc()
        sys.exit(f"rekindle: the module of handler '{os.environ.get('FN_HANDLER')}' failed while it was imported")

    function = Function(user_handler)
    routes = {
        "/.rekindle/before-snapshot": lifecycle.before_snapshot,
        "/.rekindle/after-restore": lifecycle.after_restore,
    }
    server.serve(int(os.environ.get("PORT", "8080")), function, routes)


if __name__ == "__main__":
    main()

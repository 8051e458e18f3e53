"""Finds the user's handler, and runs sync and async callables alike."""

import asyncio
import importlib
import inspect
import threading


class HandlerNotFound(Exception):
    """FN_HANDLER names nothing that can be called."""


def load(name):
    """The callable that `name` ('module.function', module dotted or slashed, below /app) stands for.

    Raises HandlerNotFound, or whatever the user's module raises while it is imported.
    """
    module_name, dot, attribute = name.rpartition(".")
    if not dot or not module_name or not attribute:
        raise HandlerNotFound(f"handler '{name}' is not of the form 'module.function'; set entry in fn.toml")
    module_name = module_name.removeprefix("./").replace("/", ".")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # A module that the user's module misses is the user's error and keeps its traceback.
        if error.name is None or not (module_name == error.name or module_name.startswith(error.name + ".")):
            raise
        raise HandlerNotFound(
            f"handler '{name}': there is no module '{module_name}' in the function's folder; check entry in fn.toml"
        ) from None
    function = getattr(module, attribute, None)
    if function is None:
        raise HandlerNotFound(f"handler '{name}': module '{module_name}' has no '{attribute}'; check entry in fn.toml")
    if not callable(function):
        raise HandlerNotFound(f"handler '{name}': '{attribute}' in '{module_name}' cannot be called")
    if inspect.iscoroutinefunction(function):
        _event_loop()  # Now, so that it is part of the snapshot.
    return function


def call(function, *arguments):
    """What `function` returns; where that is awaitable, its result from the process's one event loop. Blocks."""
    result = function(*arguments)
    if inspect.isawaitable(result):
        return asyncio.run_coroutine_threadsafe(_await(result), _event_loop()).result()
    return result


async def _await(awaitable):
    return await awaitable


_loop = None
_loop_lock = threading.Lock()


def _event_loop():
    """One loop for the life of the process, on a thread of its own: clients that a handler keeps between invocations
    (HTTP sessions, pools) belong to the loop that made them."""
    global _loop
    with _loop_lock:
        if _loop is None:
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="rekindle-asyncio", daemon=True).start()
            _loop = loop
    return _loop

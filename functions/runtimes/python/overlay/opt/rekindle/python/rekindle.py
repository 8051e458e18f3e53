"""What a function may import from the platform: hooks around snapshots, and invocations of other functions.

    import rekindle

    @rekindle.before_snapshot
    def close_files(): ...

    @rekindle.after_restore
    async def reconnect(): ...

Hooks take no arguments and may be `async def`. Before a snapshot they run in reverse order of registration, after a
restore in order, one at a time. A hook that raises fails the snapshot or the restore.

These hooks are for the runtime `python`. An `http` function has paths in fn.toml in their place; what the runtime
reseeds by itself, such a program reseeds by calling `rekindle.reseed()` there.

    stock = rekindle.invoke("stock", {"item": 7})

A handler's context has `invoke` and `invoke_async` as well, which know how much time is left.
"""

from rekindle_runtime.invoke import InvokeError

__all__ = ["InvokeError", "after_restore", "before_snapshot", "invoke", "invoke_async", "reseed"]

_before_snapshot = []
_after_restore = []


def before_snapshot(hook):
    """Registers `hook` to run once before the process is checkpointed. Returns it, so this serves as a decorator."""
    _before_snapshot.append(hook)
    return hook


def after_restore(hook):
    """Registers `hook` to run in every restored instance before its first request. Returns it."""
    _after_restore.append(hook)
    return hook


def reseed():
    """Gives the generators of this process new seeds: `random`, `numpy.random`, OpenSSL's, and the others that
    docs/reference/runtime-contract.md lists. The runtime `python` does so before the first after-restore hook."""
    from rekindle_runtime import randomness

    randomness.reseed()


def invoke(function, payload=None, timeout=None):
    """The result of another function of the same namespace for `payload`, as JSON each. Raises InvokeError."""
    from rekindle_runtime import invoke

    return invoke.now(function, payload, None, timeout)


def invoke_async(function, payload=None):
    """Has another function of the same namespace run later with `payload`. Returns the id of that invocation. Raises
    InvokeError."""
    from rekindle_runtime import invoke

    return invoke.later(function, payload)

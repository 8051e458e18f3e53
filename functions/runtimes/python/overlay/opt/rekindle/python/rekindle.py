"""What a function may import from the platform: hooks around snapshots.

    import rekindle

    @rekindle.before_snapshot
    def close_files(): ...

    @rekindle.after_restore
    async def reconnect(): ...

Hooks take no arguments and may be `async def`. Before a snapshot they run in reverse order of registration, after a restore
in order, one at a time. A hook that raises fails the snapshot or the restore.

These hooks are for the runtime `python`. An `http` function has paths in fn.toml in their place; what the runtime reseeds by
itself, such a program reseeds by calling `rekindle.reseed()` there.
"""

__all__ = ["before_snapshot", "after_restore", "reseed"]

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

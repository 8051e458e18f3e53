"""What a function may import from the platform: hooks around snapshots.

    import rekindle

    @rekindle.before_snapshot
    def close_files(): ...

    @rekindle.after_restore
    async def reconnect(): ...

Hooks take no arguments and may be `async def`. Before a snapshot they run in reverse order of registration, after a restore
in order, one at a time. A hook that raises fails the snapshot or the restore.
"""

__all__ = ["before_snapshot", "after_restore"]

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

"""Secrets as environment variables: what the files of the platform say, at the start and whenever they have changed.

The files come into an instance after its restore, so nothing of them is in a snapshot. A function without secrets has
no folder for them.
"""

import os
import threading

FOLDER = "/run/secrets"
# Another file after each change.
CHANGED = os.path.join(FOLDER, ".changed")

_lock = threading.Lock()
_watched = False
_seen = None
_names = set()


def begin():
    """Looks whether the function has secrets, and takes over those that are there."""
    global _watched
    _watched = os.path.isdir(FOLDER)
    refresh()


def refresh():
    """Takes over the files if they have changed."""
    if not _watched:
        return
    try:
        status = os.stat(CHANGED)
    except OSError:
        return  # There are none before the snapshot.
    if (status.st_ino, status.st_mtime_ns) != _seen:
        with _lock:
            _take_over((status.st_ino, status.st_mtime_ns))


def _take_over(seen):
    global _seen, _names
    names = {name for name in os.listdir(FOLDER) if not name.startswith(".")}
    for name in _names - names:
        os.environ.pop(name, None)
    for name in names:
        try:
            with open(os.path.join(FOLDER, name), "rb") as file:
                os.environ[name] = file.read().decode()
        except (OSError, ValueError):
            pass  # It is gone again, or no text: a file alone.
    _names, _seen = names, seen

"""Random numbers and identities that differ between the copies of one snapshot.

Every restored instance starts from the same bytes, so every generator that lives in memory would go on with the same
numbers in all of them. os.urandom, secrets, random.SystemRandom and uuid4 ask the kernel each time and need nothing.
"""

import os
import sys


# The first reseed of a process makes OpenSSL's primary generator (a millisecond), and the interpreter specialises what
# it runs often.
REHEARSALS = 10


def prepare():
    """Before a snapshot: loads what `reseed` will need, and rehearses it, so that no restored copy has to: it takes
    0.3 ms there instead of 1.3."""
    modules = sys.modules
    if "_ssl" not in modules and _maps("libcrypto.so"):
        import _ssl  # noqa: F401
    if "_sqlite3" in modules:
        import ctypes  # noqa: F401
    for _ in range(REHEARSALS):
        reseed()
    # These are drawn when a copy first needs them, as sqlite's generator is seeded then.
    if "tempfile" in modules:
        modules["tempfile"]._name_sequence = None
    if "uuid" in modules:
        modules["uuid"]._node, modules["uuid"]._GETTERS = None, []


def reseed(done=""):
    """Gives every generator of this process that is known here a new seed from the kernel, but for those that are
    `done`: kinds that the platform found in memory, as it calls them. Those not loaded yet need none."""
    modules = sys.modules
    if "random" in modules and "python_random" not in done:
        modules["random"].seed()
    if "numpy.random" in modules and "numpy_random" not in done:
        modules["numpy.random"].seed()
    if "_ssl" in modules and "openssl" not in done:
        # Reseeds OpenSSL's primary generator from the kernel as well; those of the threads notice and reseed from it.
        # By itself OpenSSL would only after a fork, which it tells by the pid, or after some minutes.
        modules["_ssl"].RAND_add(os.urandom(48), 48.0)
    if "python_random" in done:
        return  # `prepare` has seen to the rest.
    if "tempfile" in modules:
        modules["tempfile"]._name_sequence = None
    if "uuid" in modules:
        _new_node(modules["uuid"])
    if "_sqlite3" in modules:
        _reset_sqlite()


def kinds():
    """Which generators `reseed` is needed for, as the platform calls them."""
    known = {"random": "python_random", "numpy.random": "numpy_random", "_ssl": "openssl"}
    return [kind for module, kind in known.items() if module in sys.modules]


def _new_node(uuid):
    # For uuid1: libuuid draws node and clock sequence once a process, and cannot be told to draw again; uuid's own way
    # in Python draws the sequence each time, and the node here. The lowest bit of the first byte marks a node that is
    # no network card.
    uuid._generate_time_safe = None
    uuid._node = int.from_bytes(os.urandom(6), "big") | 1 << 40


def _reset_sqlite():
    # Its generator behind random(), randomblob() and temporary names seeds itself anew at the next use.
    import ctypes

    try:
        ctypes.CDLL("libsqlite3.so.0").sqlite3_randomness(0, None)
    except (OSError, AttributeError):
        pass  # A sqlite of the function's own, linked into its module.


def _maps(library):
    try:
        with open("/proc/self/maps") as maps:
            return library in maps.read()
    except OSError:
        return False

"""A heavy import, paid for once: solves a random linear system of n equations and says how well."""

import time

import numpy

generator = numpy.random.default_rng()

try:
    import rekindle
except ModuleNotFoundError:  # run outside the platform
    pass
else:

    @rekindle.after_restore
    def reseed():
        # The platform reseeds numpy's global generator; one of your own is yours to reseed.
        global generator
        generator = numpy.random.default_rng()


def handler(event, context):
    n = min(int((event.get("queryStringParameters") or {}).get("n", "64")), 1000)
    started = time.perf_counter()
    matrix = generator.standard_normal((n, n))
    wanted = generator.standard_normal(n)
    found = numpy.linalg.solve(matrix, matrix @ wanted)
    return {
        "n": n,
        "error": float(numpy.abs(found - wanted).max()),
        "determinant_sign": int(numpy.linalg.slogdet(matrix).sign),
        "milliseconds": round((time.perf_counter() - started) * 1000, 3),
        "numpy": numpy.__version__,
    }

"""Primes, counted by machine code that was compiled in this process."""

import numba


@numba.njit
def primes(limit):
    count = 0
    for n in range(2, limit):
        divisor = 2
        while divisor * divisor <= n and n % divisor:
            divisor += 1
        count += divisor * divisor > n
    return count


kept = []


def handler(event, context):
    if event["requestContext"]["http"]["method"] == "POST":
        kept.append(event["rawPath"])
    return {"hello": primes(10_000), "kept": kept}

#!/usr/bin/env bash
# scripts/failed-tests.sh LOG: the names of the tests that failed in cargo test's output LOG, on one line. None if
# anything else went wrong, too: a build, a process that did not live to tell which test it was in.
set -euo pipefail

awk '
    # A binary lists its failures twice, with their output and by their names; the second list counts.
    /^failures:$/ { count = 0; listing = 1; next }
    /^test result: FAILED/ {
        if (!count) broken = 1
        for (i = 0; i < count; i++) names = names (names == "" ? "" : " ") found[i]
        told++; listing = 0
    }
    /^test result: ok/ { listing = 0 }
    listing && /^    [A-Za-z_][A-Za-z0-9_:]*$/ { found[count++] = $1 }
    /^error: [0-9]+ targets? failed:/ { targets = $2 }
    END { if (!broken && told > 0 && told == targets) print names }
' "$1"

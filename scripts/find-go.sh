# Sourced by scripts that build a tool from the Go module proxy. `find_go TOOL` prints the path of a Go that can fetch
# the newer toolchain a module asks for by itself, or says on standard error what to do and fails.
# shellcheck shell=bash

# find_go TOOL [CONSEQUENCE]: the consequence is what is missing without the tool.
find_go() {
    local tool=$1 consequence=${2:-} oldest=1.21 go have
    go=$(command -v go || { [ -x /usr/local/go/bin/go ] && echo /usr/local/go/bin/go; } || true)
    if [ -z "$go" ]; then
        echo "$tool: needs Go $oldest or later, which is not installed. Debian 12's own package (1.19) is too old:" \
            "unpack an official release to /usr/local/go, then run this again. $consequence" >&2
        return 1
    fi
    have=$("$go" env GOVERSION | sed 's/^go//')
    if [ "$(printf '%s\n' "$oldest" "$have" | sort -V | head -n 1)" != "$oldest" ]; then
        echo "$tool: Go $have ($go) is too old, $oldest or later is needed; Debian 12's package is 1.19:" \
            "unpack an official release to /usr/local/go and put /usr/local/go/bin first in PATH. $consequence" >&2
        return 1
    fi
    echo "$go"
}

#!/usr/bin/env bash
# Installs the identity provider that tests sign in at: panva's oidc-provider, from npm, in the versions of
# tests/oidc/package-lock.json. Rekindle itself needs none. Idempotent: the same versions already in DEST cost nothing.
# usage: install-oidc-provider.sh DEST
#        then REKINDLE_OIDC=DEST make test
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dest=${1:?usage: install-oidc-provider.sh DEST}
source=$here/../tests/oidc

mkdir -p "$dest"
cp "$source/provider.mjs" "$dest/provider.mjs"
if cmp -s "$source/package-lock.json" "$dest/package-lock.json" && [ -d "$dest/node_modules/oidc-provider" ]; then
    echo "oidc-provider: is in $dest"
    exit 0
fi
for program in node npm; do
    command -v "$program" > /dev/null || {
        echo "oidc-provider: needs $program (Node.js 20 or later):" \
            "without it nobody signs in in tests, which say so" >&2
        exit 1
    }
done
cp "$source/package.json" "$source/package-lock.json" "$dest/"
# Half an installation is none: the lock file says that all is there.
rm -rf "$dest/node_modules"
(cd "$dest" && npm ci --ignore-scripts --no-audit --no-fund --silent) || { rm -f "$dest/package-lock.json"; exit 1; }
echo "oidc-provider:" \
    "$(cd "$dest" && node -p "require('./node_modules/oidc-provider/package.json').version") is in $dest"

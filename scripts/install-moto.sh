#!/usr/bin/env bash
# Installs moto, which serves Amazon SQS and KMS, from PyPI; tests use both. Rekindle itself does not need it: it is a
# process of the tests. Idempotent: the same version already in DEST costs nothing.
# usage: install-moto.sh DEST
#        then REKINDLE_MOTO_SERVER=DEST/moto/bin/moto_server make test
set -euo pipefail

dest=${1:?usage: install-moto.sh DEST}
version=5.2.5

if [ "$(cat "$dest/moto/version" 2> /dev/null)" = "$version" ] &&
    "$dest/moto/bin/python3" -c 'import moto.server' 2> /dev/null; then
    echo "moto: $version is in $dest/moto"
    exit 0
fi
mkdir -p "$dest"
echo "moto: installing $version (some seconds)"
rm -rf "$dest/moto"
python3 -m venv "$dest/moto" || { echo "moto: python3 has no venv module: install Debian's python3-venv" >&2; exit 1; }
"$dest/moto/bin/pip" install --quiet --disable-pip-version-check "moto[server,sqs]==$version"
echo "$version" > "$dest/moto/version"
echo "moto: $version is in $dest/moto"

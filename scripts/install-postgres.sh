#!/usr/bin/env bash
# Installs PostgreSQL's programs from Debian, for the tests that run on a server of their own; no server is set up or
# started. A cluster's database is an existing one. Idempotent: quick when it is there.
# usage: install-postgres.sh
set -euo pipefail

found=$(compgen -G '/usr/lib/postgresql/*/bin/initdb' | sort -V | tail -n 1 || true)
if [ -n "$found" ]; then
    echo "postgresql: $("${found%/initdb}/postgres" --version) is in ${found%/initdb}"
    exit 0
fi
[ "$(id -u)" = 0 ] || { echo "postgresql: run as root, or install the package postgresql" >&2; exit 1; }
# The package would make a cluster of its own and start it.
mkdir -p /etc/postgresql-common
if [ ! -e /etc/postgresql-common/createcluster.conf ]; then
    echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.conf
fi
export DEBIAN_FRONTEND=noninteractive
# The package lists may be older than the mirror: read them again only when that fails.
apt-get -qq install --no-install-recommends -y postgresql > /dev/null 2>&1 || {
    apt-get -qq update
    apt-get -qq install --no-install-recommends -y postgresql > /dev/null
}
found=$(compgen -G '/usr/lib/postgresql/*/bin/initdb' | sort -V | tail -n 1)
echo "postgresql: $("${found%/initdb}/postgres" --version) is in ${found%/initdb}"

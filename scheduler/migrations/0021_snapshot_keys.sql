-- Keys of namespaces whose snapshots are encrypted, each sealed with the master key for its namespace. A namespace
-- without a row has snapshots in the clear. The key goes with the namespace.
CREATE TABLE snapshot_keys (
    namespace TEXT PRIMARY KEY,
    since_unix_s BIGINT NOT NULL,
    sealed BLOB NOT NULL
);

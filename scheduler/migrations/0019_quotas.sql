-- Limits of namespaces, as JSON of the wire type. A namespace without a row has those for namespaces without any.
CREATE TABLE quotas (
    namespace TEXT PRIMARY KEY,
    limits TEXT NOT NULL
);

-- What namespaces have used by day, in days since the Unix epoch; of deleted functions, too. Times are MiB-microseconds.
-- Storage is in rows of version 0, in byte-seconds.
CREATE TABLE usage_days (
    day BIGINT NOT NULL,
    namespace TEXT NOT NULL,
    function TEXT NOT NULL,
    version BIGINT NOT NULL,
    ok BIGINT NOT NULL,
    errors BIGINT NOT NULL,
    warm BIGINT NOT NULL,
    parked BIGINT NOT NULL,
    restored BIGINT NOT NULL,
    booted BIGINT NOT NULL,
    egress_bytes BIGINT NOT NULL,
    stored_byte_s BIGINT NOT NULL,
    PRIMARY KEY (day, namespace, function, version)
);
CREATE INDEX usage_days_by_namespace ON usage_days (namespace, day);

-- The last report of each source that was counted.
CREATE TABLE usage_sources (
    source TEXT PRIMARY KEY,
    sequence BIGINT NOT NULL,
    unix_s BIGINT NOT NULL
);

-- Until when storage is counted.
CREATE TABLE usage_stored_until (
    one BIGINT PRIMARY KEY,
    unix_s BIGINT NOT NULL
);

-- Size of the uploaded folder. Absent for versions from before.
ALTER TABLE versions ADD COLUMN source_bytes BIGINT;

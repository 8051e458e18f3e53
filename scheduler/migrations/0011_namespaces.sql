-- A function's name is unique in its namespace. Until others can be made there is one.
CREATE TABLE namespaces (
    name TEXT PRIMARY KEY,
    created_unix_s BIGINT NOT NULL
);
INSERT INTO namespaces (name, created_unix_s) VALUES ('default', 0);

CREATE TABLE version_numbers_of_names (
    namespace TEXT NOT NULL DEFAULT 'default',
    name TEXT NOT NULL,
    last BIGINT NOT NULL,
    PRIMARY KEY (namespace, name)
);
INSERT INTO version_numbers_of_names (name, last) SELECT name, last FROM version_numbers;
DROP TABLE version_numbers;
ALTER TABLE version_numbers_of_names RENAME TO version_numbers;

-- A snapshot that all functions of a runtime share is under the default namespace and the function ''.
CREATE TABLE runtime_snapshots_of_functions (
    namespace TEXT NOT NULL DEFAULT 'default',
    runtime TEXT NOT NULL,
    function TEXT NOT NULL,
    named TEXT NOT NULL,
    PRIMARY KEY (namespace, runtime, function)
);
INSERT INTO runtime_snapshots_of_functions (runtime, function, named) SELECT runtime, function, named FROM runtime_snapshots;
DROP TABLE runtime_snapshots;
ALTER TABLE runtime_snapshots_of_functions RENAME TO runtime_snapshots;

ALTER TABLE async_calls ADD COLUMN namespace TEXT NOT NULL DEFAULT 'default';
DROP INDEX async_calls_by_owner;
DROP INDEX async_calls_by_due;
DROP INDEX async_calls_by_age;
CREATE UNIQUE INDEX async_calls_by_owner ON async_calls (namespace, function, idempotency_key, owner);
-- The state is first, as the calls to run are counted over all namespaces.
CREATE INDEX async_calls_by_due ON async_calls (state, namespace, function, due_unix_ms);
CREATE INDEX async_calls_by_age ON async_calls (state, namespace, function, accepted_unix_ms);


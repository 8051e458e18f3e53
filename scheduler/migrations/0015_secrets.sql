-- Secrets of namespaces, each sealed with the master key for its namespace and name. One that is removed keeps its row
-- without a value, so that its versions go on.
CREATE TABLE secrets (
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    version BIGINT NOT NULL,
    set_unix_s BIGINT NOT NULL,
    sealed BLOB,
    PRIMARY KEY (namespace, name)
);

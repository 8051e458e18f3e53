-- Functions, their versions, the workers last heard of.
-- AUTOINCREMENT: an id, and so a user id on the workers, is never given twice, not even after its function was deleted.
CREATE TABLE functions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    created_unix_s BIGINT NOT NULL
);

-- JSON columns hold the wire types of the same name.
CREATE TABLE versions (
    function_id BIGINT NOT NULL REFERENCES functions (id),
    number BIGINT NOT NULL,
    state TEXT NOT NULL,
    created_unix_s BIGINT NOT NULL,
    manifest TEXT NOT NULL,
    source_key TEXT NOT NULL,
    spec TEXT,
    error TEXT,
    snapshot TEXT,
    snapshot_error TEXT,
    phases TEXT NOT NULL,
    PRIMARY KEY (function_id, number)
);

-- The last version number given under a name. It outlives the function: what `hello` version 3 names never changes.
CREATE TABLE version_numbers (
    name TEXT PRIMARY KEY,
    last BIGINT NOT NULL
);

CREATE TABLE workers (
    id TEXT PRIMARY KEY,
    address TEXT NOT NULL,
    incarnation TEXT NOT NULL,
    since_unix_s BIGINT NOT NULL
);

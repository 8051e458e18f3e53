-- Keys of the API. Of a key there is its hash alone. A revoked key has no row.
CREATE TABLE api_keys (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    role TEXT NOT NULL,
    scope TEXT NOT NULL,
    hash BLOB NOT NULL,
    created_by TEXT NOT NULL,
    created_unix_s BIGINT NOT NULL,
    expires_unix_s BIGINT,
    used_unix_s BIGINT
);

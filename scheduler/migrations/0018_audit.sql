-- Changes that were asked for over the API, each with the hash of the one before. Numbers have no gaps. The namespace
-- of what is the platform's is ''.
CREATE TABLE audit (
    number BIGINT PRIMARY KEY,
    unix_ms BIGINT NOT NULL,
    actor TEXT NOT NULL,
    namespace TEXT NOT NULL,
    action TEXT NOT NULL,
    object TEXT NOT NULL,
    outcome TEXT NOT NULL,
    request_id TEXT NOT NULL,
    previous TEXT NOT NULL,
    hash TEXT NOT NULL
);
-- The last entry that was removed.
CREATE TABLE audit_begins_after (
    one BIGINT PRIMARY KEY,
    number BIGINT NOT NULL,
    hash TEXT NOT NULL
);

-- Rules that let holders of tokens and certificates in. Whom one admits is JSON of the wire type.
CREATE TABLE access_rules (
    id TEXT PRIMARY KEY,
    admits TEXT NOT NULL,
    role TEXT NOT NULL,
    scope TEXT NOT NULL,
    created_by TEXT NOT NULL,
    created_unix_s BIGINT NOT NULL,
    expires_unix_s BIGINT
);

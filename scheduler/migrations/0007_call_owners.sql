-- Calls belong to somebody, and what proves who a caller is lies encrypted.
-- owner: whose the idempotency key is: `key:` and a caller's key, or `request:` and the digest of the whole request; empty of calls that were
-- accepted before there were owners, whose keys are nobody's.
-- request_sealed, answer_sealed: the headers of request and answer that are secrets, as JSON, sealed with the master key (crates/envelope).
-- The digest of a call is that of what it asks for: method, path and body.
ALTER TABLE async_calls ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE async_calls ADD COLUMN request_sealed BLOB;
ALTER TABLE async_calls ADD COLUMN answer_sealed BLOB;
DROP INDEX async_calls_by_key;
CREATE UNIQUE INDEX async_calls_by_owner ON async_calls (function, idempotency_key, owner);

-- Which master key sealed what this database holds. One row.
CREATE TABLE master_key (
    one BIGINT PRIMARY KEY,
    id TEXT NOT NULL
);

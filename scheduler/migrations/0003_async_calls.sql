-- Asynchronous invocations, from their acceptance until what came of them is forgotten.
-- due_unix_ms: of a queued call, not before; of a running one, until when its gateway holds it.
-- JSON columns: request, answer and error hold the wire types StoredRequest, StoredAnswer (its body apart) and ApiError.
CREATE TABLE async_calls (
    id TEXT PRIMARY KEY,
    function TEXT NOT NULL,
    state TEXT NOT NULL,
    idempotency_key TEXT,
    digest TEXT NOT NULL,
    accepted_unix_ms BIGINT NOT NULL,
    due_unix_ms BIGINT NOT NULL,
    expires_unix_ms BIGINT NOT NULL,
    max_attempts BIGINT NOT NULL,
    attempts BIGINT NOT NULL,
    failures BIGINT NOT NULL,
    holder TEXT,
    request TEXT NOT NULL,
    body BLOB NOT NULL,
    error TEXT,
    answer TEXT,
    answer_body BLOB,
    bytes BIGINT NOT NULL,
    finished_unix_ms BIGINT,
    callback TEXT,
    callback_state TEXT,
    callback_due_unix_ms BIGINT,
    callback_attempts BIGINT NOT NULL,
    callback_error TEXT
);

CREATE UNIQUE INDEX async_calls_by_key ON async_calls (function, idempotency_key);
CREATE INDEX async_calls_by_due ON async_calls (state, function, due_unix_ms);
CREATE INDEX async_calls_by_age ON async_calls (state, function, accepted_unix_ms);
CREATE INDEX async_calls_by_end ON async_calls (state, finished_unix_ms, bytes);
CREATE INDEX async_calls_by_callback ON async_calls (callback_due_unix_ms);

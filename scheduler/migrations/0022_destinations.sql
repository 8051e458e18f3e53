-- Who is told of a call's success, and who of its failure: a function of its namespace, or a URL.
ALTER TABLE async_calls ADD COLUMN on_success TEXT;
ALTER TABLE async_calls ADD COLUMN on_failure TEXT;

-- The one of both that its end was for, and how far telling it is.
ALTER TABLE async_calls ADD COLUMN destination TEXT;
ALTER TABLE async_calls ADD COLUMN destination_state TEXT;
ALTER TABLE async_calls ADD COLUMN destination_due_unix_ms BIGINT;
ALTER TABLE async_calls ADD COLUMN destination_attempts BIGINT NOT NULL DEFAULT 0;
ALTER TABLE async_calls ADD COLUMN destination_error TEXT;
CREATE INDEX async_calls_by_destination ON async_calls (destination_due_unix_ms);

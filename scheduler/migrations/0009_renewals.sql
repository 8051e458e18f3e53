-- Versions whose snapshot is to be made anew: why, not before when, how often that has failed, and why the last time.
CREATE TABLE renewals (
    function_id BIGINT NOT NULL REFERENCES functions (id),
    number BIGINT NOT NULL,
    reason TEXT NOT NULL,
    why TEXT NOT NULL,
    since_unix_s BIGINT NOT NULL,
    due_unix_s BIGINT NOT NULL,
    attempts BIGINT NOT NULL,
    error TEXT,
    PRIMARY KEY (function_id, number)
);

-- Snapshots whose place another has taken, kept while instances may need their memory.
CREATE TABLE replaced_snapshots (
    snapshot TEXT PRIMARY KEY,
    function_id BIGINT NOT NULL REFERENCES functions (id),
    since_unix_s BIGINT NOT NULL
);

-- Workers that shall be empty: they take nothing new until an operator says otherwise.
CREATE TABLE drained_workers (
    worker TEXT PRIMARY KEY,
    since_unix_s BIGINT NOT NULL
);

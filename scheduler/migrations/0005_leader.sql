-- Which of several schedulers leads, and until when unless it says so again. One row.
CREATE TABLE leader (
    one BIGINT PRIMARY KEY,
    holder TEXT NOT NULL,
    address TEXT NOT NULL,
    until_unix_ms BIGINT NOT NULL,
    term BIGINT NOT NULL
);

-- Members of the cluster whose certificates are not believed any more, by what these say of them. Nothing is ever taken back: the key of a
-- certificate that was taken stays taken.
CREATE TABLE revocations (
    role TEXT NOT NULL,
    name TEXT NOT NULL,
    since_unix_s BIGINT NOT NULL,
    PRIMARY KEY (role, name)
);

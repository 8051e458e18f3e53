-- The snapshots of runtimes that versions begin as: those of one function, or with '' those of all. JSON of the wire type, with the digest of
-- the manifest. The digest of a version's own snapshot is in its spec.
CREATE TABLE runtime_snapshots (
    runtime TEXT NOT NULL,
    function TEXT NOT NULL,
    named TEXT NOT NULL,
    PRIMARY KEY (runtime, function)
);

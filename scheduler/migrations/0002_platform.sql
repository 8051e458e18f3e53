-- Who this scheduler is to the object store, made once: a bucket belongs to one.
CREATE TABLE platform (
    id TEXT NOT NULL
);

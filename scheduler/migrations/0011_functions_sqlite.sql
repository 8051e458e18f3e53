-- SQLite changes no constraint, so the table is made anew. Others refer to it: they are checked at the end. The
-- sequence is kept, so that no id is given twice.
PRAGMA defer_foreign_keys = ON;
CREATE TABLE earlier_functions AS SELECT id, name, created_unix_s FROM functions;
CREATE TABLE earlier_sequence AS SELECT name, seq FROM sqlite_sequence WHERE name = 'functions';
DROP TABLE functions;
CREATE TABLE functions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace TEXT NOT NULL DEFAULT 'default' REFERENCES namespaces (name),
    name TEXT NOT NULL,
    created_unix_s BIGINT NOT NULL,
    UNIQUE (namespace, name)
);
INSERT INTO functions (id, name, created_unix_s) SELECT id, name, created_unix_s FROM earlier_functions;
DELETE FROM sqlite_sequence WHERE name = 'functions';
INSERT INTO sqlite_sequence (name, seq) SELECT name, seq FROM earlier_sequence;
DROP TABLE earlier_functions;
DROP TABLE earlier_sequence;

"""Makes elements.db: two tables with a foreign key, and a full-text index."""

import pathlib
import sqlite3

path = pathlib.Path(__file__).with_name("elements.db")
path.unlink(missing_ok=True)
database = sqlite3.connect(path)
database.executescript("""
    CREATE TABLE kinds (id INTEGER PRIMARY KEY, name TEXT);
    CREATE TABLE samples (id INTEGER PRIMARY KEY, kind INTEGER REFERENCES kinds(id), title TEXT, mass REAL);
    CREATE VIRTUAL TABLE samples_fts USING fts5(title, content=samples, content_rowid=id);
""")
kinds = ["metal", "gas", "salt", "acid"]
database.executemany("INSERT INTO kinds VALUES (?, ?)", enumerate(kinds, 1))
database.executemany(
    "INSERT INTO samples VALUES (?, ?, ?, ?)",
    ((n, n % 4 + 1, f"sample of {kinds[n % 4]} number {n}", n * 0.25) for n in range(1, 2001)),
)
database.execute("INSERT INTO samples_fts (samples_fts) VALUES ('rebuild')")
database.commit()
database.close()

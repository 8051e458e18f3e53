"""Two workers, so what is kept is in a file of SQLite."""

import sqlite3

from quart import Quart

app = Quart(__name__)
database = sqlite3.connect("/tmp/items.db", timeout=10)
database.execute("CREATE TABLE IF NOT EXISTS items (name TEXT)")


@app.get("/")
async def hello():
    return "hello of Quart"


@app.post("/items/<name>")
async def add(name):
    with database:
        database.execute("INSERT INTO items VALUES (?)", (name,))
    return "added"


@app.get("/items")
async def all_items():
    return [name for (name,) in database.execute("SELECT name FROM items")]

"""Items in PostgreSQL. Each request has a connection of its own."""

import pg8000.native
from flask import Flask

app = Flask(__name__)


def run(query, **values):
    with pg8000.native.Connection("postgres", host="127.0.0.1") as connection:
        return connection.run(query, **values)


run("CREATE TABLE items (name text)")


@app.get("/")
def hello():
    return "hello of " + run("SELECT version()")[0][0]


@app.post("/items/<name>")
def add(name):
    run("INSERT INTO items VALUES (:name)", name=name)
    return "added"


@app.get("/items")
def all_items():
    return [name for (name,) in run("SELECT name FROM items")]

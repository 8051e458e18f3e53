"""Items in memory, by Flask."""

from flask import Flask

app = Flask(__name__)
items = []


@app.get("/")
def hello():
    return "hello of Flask"


@app.post("/items/<name>")
def add(name):
    items.append(name)
    return items


@app.get("/items")
def all_items():
    return items

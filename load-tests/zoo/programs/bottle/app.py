"""Items in memory, by Bottle."""

from bottle import default_app, get, post

items = []


@get("/")
def hello():
    return "hello of Bottle"


@post("/items/<name>")
def add(name):
    items.append(name)
    return {"items": items}


@get("/items")
def all_items():
    return {"items": items}


app = default_app()

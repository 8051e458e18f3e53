"""A page with a counter that all share."""

import os

from nicegui import app, ui

items = []


@ui.page("/")
def page():
    ui.label("hello of NiceGUI")


@app.post("/items/{name}")
def add(name: str):
    items.append(name)
    return items


@app.get("/items")
def all_items():
    return items


ui.run(host="127.0.0.1", port=int(os.environ["PORT"]), reload=False, show=False)

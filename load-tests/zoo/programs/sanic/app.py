"""Items in memory, by Sanic."""

from sanic import Sanic
from sanic.response import json, text

app = Sanic("zoo")
items = []


@app.get("/")
async def hello(request):
    return text("hello of Sanic")


@app.post("/items/<name>")
async def add(request, name):
    items.append(name)
    return json(items)


@app.get("/items")
async def all_items(request):
    return json(items)

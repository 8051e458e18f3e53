"""Items in memory, by BlackSheep."""

from blacksheep import Application, get, json, post, text

app = Application()
items = []


@get("/")
async def hello():
    return text("hello of BlackSheep")


@post("/items/{name}")
async def add(name: str):
    items.append(name)
    return json(items)


@get("/items")
async def all_items():
    return json(items)

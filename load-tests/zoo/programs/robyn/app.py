"""Items in memory, by Robyn."""

import json
import os

from robyn import Robyn

app = Robyn(__file__)
items = []


@app.get("/")
async def hello(request):
    return "hello of Robyn"


@app.post("/items/:name")
async def add(request):
    items.append(request.path_params["name"])
    return json.dumps(items)


@app.get("/items")
async def all_items(request):
    return json.dumps(items)


app.start(host="127.0.0.1", port=int(os.environ["PORT"]))

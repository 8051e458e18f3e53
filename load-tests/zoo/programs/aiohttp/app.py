"""Items in memory, by aiohttp."""

import os

from aiohttp import web

items = []
routes = web.RouteTableDef()


@routes.get("/")
async def hello(request):
    return web.Response(text="hello of aiohttp")


@routes.post("/items/{name}")
async def add(request):
    items.append(request.match_info["name"])
    return web.json_response(items)


@routes.get("/items")
async def all_items(request):
    return web.json_response(items)


app = web.Application()
app.add_routes(routes)
web.run_app(app, host="127.0.0.1", port=int(os.environ["PORT"]))

"""Items in memory, by Starlette."""

from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

items = []


async def hello(request):
    return PlainTextResponse("hello of Starlette")


async def add(request):
    items.append(request.path_params["name"])
    return JSONResponse(items)


async def all_items(request):
    return JSONResponse(items)


app = Starlette(
    routes=[
        Route("/", hello),
        Route("/items/{name}", add, methods=["POST"]),
        Route("/items", all_items),
    ]
)

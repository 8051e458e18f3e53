"""Items in memory, by Pyramid."""

import os

from pyramid.config import Configurator
from pyramid.response import Response
from waitress import serve

items = []


def add(request):
    items.append(request.matchdict["name"])
    return items


with Configurator() as config:
    config.add_route("hello", "/")
    config.add_view(lambda request: Response("hello of Pyramid"), route_name="hello")
    config.add_route("items", "/items")
    config.add_view(lambda request: items, route_name="items", renderer="json")
    config.add_route("item", "/items/{name}")
    config.add_view(add, route_name="item", renderer="json", request_method="POST")
    app = config.make_wsgi_app()
serve(app, host="127.0.0.1", port=int(os.environ["PORT"]))

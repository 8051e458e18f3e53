"""Items in memory, by Falcon."""

import falcon.asgi

items = []


class Hello:
    async def on_get(self, request, response):
        response.text = "hello of Falcon"


class Items:
    async def on_get(self, request, response):
        response.media = items

    async def on_post(self, request, response, name):
        items.append(name)
        response.media = items


app = falcon.asgi.App()
app.add_route("/", Hello())
app.add_route("/items", Items())
app.add_route("/items/{name}", Items())

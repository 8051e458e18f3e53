"""Items in memory, by Tornado."""

import asyncio
import json
import os

import tornado.web

items = []


class Hello(tornado.web.RequestHandler):
    def get(self):
        self.write("hello of Tornado")


class Items(tornado.web.RequestHandler):
    def get(self):
        self.write(json.dumps(items))


class Item(tornado.web.RequestHandler):
    def post(self, name):
        items.append(name)
        self.write(json.dumps(items))


async def main():
    app = tornado.web.Application([("/", Hello), ("/items", Items), ("/items/(.*)", Item)])
    app.listen(int(os.environ["PORT"]), "127.0.0.1")
    await asyncio.Event().wait()


asyncio.run(main())

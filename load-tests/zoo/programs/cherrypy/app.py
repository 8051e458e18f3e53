"""Items in memory, by CherryPy."""

import os

import cherrypy

items = []


class Root:
    @cherrypy.expose
    def index(self):
        return "hello of CherryPy"

    @cherrypy.expose
    @cherrypy.tools.json_out()
    def items(self, name=None):
        if cherrypy.request.method == "POST":
            items.append(name)
        return items


cherrypy.config.update({"server.socket_host": "127.0.0.1", "server.socket_port": int(os.environ["PORT"])})
cherrypy.quickstart(Root())

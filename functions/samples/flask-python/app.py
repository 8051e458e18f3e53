"""A Flask application behind waitress: a page, JSON, and a hook that counts restores."""

import os

from flask import Flask, jsonify, request
from markupsafe import escape
from waitress import serve

app = Flask(__name__)
restores = 0


@app.get("/")
def index():
    return f"<h1>Hello, {escape(request.args.get('name', 'world'))}!</h1>\n"


@app.route("/echo", methods=["POST"])
def echo():
    return jsonify(
        method=request.method,
        length=len(request.get_data()),
        request_id=request.headers.get("x-request-id"),
        restores=restores,
    )


@app.post("/hooks/after-restore")
def after_restore():
    global restores
    restores += 1
    return "", 204


if __name__ == "__main__":
    serve(app, host="127.0.0.1", port=int(os.environ["PORT"]), threads=8, channel_timeout=3600)

"""The listening socket and the threads that serve it.

Several threads wait in accept() on one socket, so a connection is served by the thread that takes it, with no hand-over
and no thread start on the request's path: both cost most right after a restore, when their pages are not there yet.

    waiting in accept() --connection--> serving --peer closed--> waiting, or gone if enough others wait

User code never runs on the main thread.
"""

import os
import socket
import sys
import threading
import traceback

from .http1 import BadRequest, Connection, Response
from .payload import error_response

# Threads that wait for a connection: one for requests, one for the platform's own calls beside them.
SPARE_THREADS = 2
# Threads to keep waiting after a burst.
MAX_SPARE_THREADS = 8


def listen(port, function, routes):
    """Listens on 127.0.0.1:`port` and serves, on threads of its own, until the process ends. `routes` are the
    platform's own paths."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Accepted sockets inherit this.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(1024)
    except OSError as error:
        sys.exit(f"rekindle: cannot listen on 127.0.0.1:{port}: {error.strerror}")
    Acceptors(listener, function, routes).start()


class Acceptors:
    """The threads around one listener. At least one always waits in accept(), so no connection waits for another."""

    def __init__(self, listener, function, routes):
        self._listener = listener
        self._function = function
        self._routes = routes
        self._lock = threading.Lock()
        self._waiting = 0

    def start(self):
        for _ in range(SPARE_THREADS):
            self._add()

    def _add(self):
        with self._lock:
            self._waiting += 1
        threading.Thread(target=self._run, name="rekindle", daemon=True).start()

    def _run(self):
        while True:
            try:
                sock, peer = self._listener.accept()
            except OSError:
                continue  # The peer was gone before it was accepted.
            with self._lock:
                self._waiting -= 1
                last = self._waiting == 0
            if last:
                self._add()
            with sock:
                self._serve(Connection(sock, peer[0]))
            with self._lock:
                if self._waiting >= MAX_SPARE_THREADS:
                    return
                self._waiting += 1

    def _serve(self, connection):
        request = None
        try:
            while True:
                request = None
                request = connection.read_request()
                if request is None:
                    return
                response = self._answer(request)
                connection.write(response, request)
                if response.close:
                    # Only a handler that called sys.exit() ends here: its answer is out, now the process goes.
                    sys.stdout.flush()
                    os._exit(1)
                if not request.keep_alive:
                    return
        except BadRequest as error:
            response = error_response(error.status, "Runtime.BadRequest", str(error))
            try:
                connection.write(response, None)
            except OSError:
                return
            connection.finish()
        except OSError:
            pass  # The platform went away; there is nobody to tell.

    def _answer(self, request):
        try:
            route = self._routes.get(request.target)
            if route is None:
                return self._function.invoke(request)
            if request.method != "POST":
                return error_response(405, "Runtime.BadRequest", f"{request.target} takes POST")
            return route(request)
        except Exception as error:
            traceback.print_exc()
            return error_response(500, "Runtime.Internal", f"the runtime failed: {error!r}")


__all__ = ["listen", "Response"]

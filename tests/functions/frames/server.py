"""A server of HTTP/2 in clear that does what a call's message says, also what no library lets a server do.

The message is the first byte of a frame of gRPC, its length, a field's number and length, and a word.
"""

import os, socket, struct, threading

DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
END_STREAM, END_HEADERS = 1, 4
lock = threading.Lock()
connections = refused = 0


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def fields(*pairs):
    """Header fields without any table (RFC 7541, 6.2.2)."""
    return b"".join(bytes([0, len(name)]) + name + bytes([len(value)]) + value for name, value in pairs)


def message(text):
    field = b"\x0a" + bytes([len(text)]) + text
    return b"\0" + struct.pack(">I", len(field)) + field


class Connection:
    def __init__(self, stream, number):
        self.stream, self.number = stream, number
        self.file = stream.makefile("rb")

    def send(self, *frames):
        self.stream.sendall(b"".join(frames))

    def begin(self, stream, *more):
        return frame(HEADERS, END_HEADERS, stream, b"\x88" + fields((b"content-type", b"application/grpc"), *more))

    def say(self, stream, text):
        return frame(DATA, 0, stream, message(text))

    def end(self, stream, status, *more):
        return frame(HEADERS, END_HEADERS | END_STREAM, stream, fields((b"grpc-status", status), *more))

    def ok(self, stream):
        text = b"connection %d" % self.number
        self.send(self.begin(stream), self.say(stream, text), self.end(stream, b"0"))

    def act(self, stream, word):
        reset = {b"reset-internal": 2, b"reset-cancel": 8, b"reset-calm": 11}
        if word in reset:
            self.send(self.begin(stream), self.say(stream, b"begun"))
            self.send(frame(RESET, 0, stream, struct.pack(">I", reset[word])))
        elif word == b"late-error":
            self.send(self.begin(stream), self.say(stream, b"begun"))
            self.send(self.end(stream, b"9", (b"grpc-message", b"not today"), (b"x-reason", b"tired")))
        elif word == b"early":
            # An answer to a call whose messages go on.
            self.send(self.begin(stream), self.end(stream, b"5", (b"grpc-message", b"enough")))
            self.send(frame(RESET, 0, stream, struct.pack(">I", 0)))
        elif word == b"refuse" and refusals(2):
            self.send(frame(RESET, 0, stream, struct.pack(">I", 7)))
        elif word == b"goaway" and refusals(1):
            # No stream of this connection was processed.
            self.send(frame(GOAWAY, 0, 0, struct.pack(">II", 0, 0)))
            self.stream.shutdown(socket.SHUT_WR)
        elif word == b"die":
            self.send(self.begin(stream), self.say(stream, b"begun"))
            os._exit(3)
        elif word == b"hang":
            self.send(self.begin(stream), self.say(stream, b"begun"))
        else:
            self.ok(stream)

    def serve(self):
        self.file.read(24)
        self.send(frame(SETTINGS, 0, 0))
        bodies = {}
        while head := self.file.read(9):
            length, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
            stream = int.from_bytes(head[5:], "big")
            payload = self.file.read(length)
            if kind == SETTINGS and not flags & 1:
                self.send(frame(SETTINGS, 1, 0))
            elif kind == PING and not flags & 1:
                self.send(frame(PING, 1, 0, payload))
            elif kind == HEADERS and not flags & END_STREAM:
                bodies[stream] = b""
            elif kind == DATA and stream in bodies:
                bodies[stream] += payload
                if len(bodies[stream]) >= 7:
                    self.act(stream, bodies.pop(stream)[7:])
                elif flags & END_STREAM:
                    self.ok(stream)


def refusals(most):
    """Whether one more is to be refused, of `most` in a row."""
    global refused
    with lock:
        refused = (refused + 1) % (most + 1)
        return refused != 0


def serve(stream, number):
    try:
        Connection(stream, number).serve()
    except OSError:
        pass
    stream.close()


listener = socket.create_server(("127.0.0.1", int(os.environ["PORT"])))
while True:
    stream, _ = listener.accept()
    connections += 1
    threading.Thread(target=serve, args=(stream, connections), daemon=True).start()

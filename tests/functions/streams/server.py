import http.server, os, threading
CHUNK = 64 << 10
released = threading.Semaphore(0)

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/events":
            self.begin("text/event-stream")
            for number in range(5):
                self.chunk(f"data: {number}\n\n".encode())
                # The next is sent once the client says that it has this one.
                if not released.acquire(timeout=30):
                    self.close_connection = True
                    return
            self.chunk(b"")
        elif self.path == "/next":
            released.release()
            self.say(b"")
        elif self.path == "/range":
            self.send_response(206)
            self.send_header("Content-Range", "bytes 2-5/10")
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"0123456789"[2:6] if self.headers.get("Range") == "bytes=2-5" else b"none")
        elif self.path == "/unchanged":
            self.send_response(304)
            self.send_header("ETag", self.headers["If-None-Match"])
            self.end_headers()
        elif self.path == "/beyond":
            self.send_response(416)
            self.send_header("Content-Range", "bytes */10")
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self.begin("application/octet-stream")
            for _ in range(int(self.path[1:]) // CHUNK):
                self.chunk(bytes(CHUNK))
            self.chunk(b"")

    def do_HEAD(self):
        self.send_response(200)
        self.send_header("Content-Length", "12345")
        self.end_headers()

    def do_PUT(self):
        length = 0
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            while size := int(self.rfile.readline(), 16):
                length += self.skip(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            length = self.skip(int(self.headers["Content-Length"]))
        self.say(str(length).encode())

    def skip(self, size):
        left = size
        while left:
            left -= len(self.rfile.read(min(left, CHUNK)))
        return size

    def begin(self, kind):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def say(self, data):
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler)
server.serve_forever()

import base64, hashlib, http.server, os, struct
messages = 0

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.close_connection = self.path != "/"
        if self.path == "/unasked":
            self.wfile.write(b"HTTP/1.1 101 Odd\r\nConnection: upgrade\r\nUpgrade: odd\r\n\r\n")
        elif self.headers.get("Upgrade") == "websocket":
            self.close_connection = True
            self.websocket()
        else:
            said = str(self.headers.get("Upgrade")).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

    def websocket(self):
        global messages
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.wfile.write((
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            f"Sec-WebSocket-Accept: {accept}\r\n\r\n").encode())
        while True:
            kind, length = self.rfile.read(2)
            length &= 127
            if length == 126:
                length, = struct.unpack(">H", self.rfile.read(2))
            mask = self.rfile.read(4)
            data = bytes(b ^ mask[n % 4] for n, b in enumerate(self.rfile.read(length)))
            if kind == 0x88:
                self.wfile.write(b"\x88" + bytes([len(data)]) + data)
                return
            messages += 1
            data = f"{messages} ".encode() + data
            self.wfile.write(b"\x81" + b"\x7e" + struct.pack(">H", len(data)) + data)

    def log_message(self, *_):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler)
server.serve_forever()

//! A program of an image that answers requests with JSON.

const SERVER: &str = r#"
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = json.dumps(answer(self.path)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass
"#;

/// A program in Python that begins with `code` and then serves what its `answer(path)` returns. `port` is an
/// expression.
pub fn json_server(code: &str, port: &str) -> String {
    format!("{code}{SERVER}\nThreadingHTTPServer((\"0.0.0.0\", {port}), Handler).serve_forever()\n")
}

//! Connections that a function changes to another protocol: WebSocket, by a real client.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::net::TcpStream;
use std::time::Duration;

use rekindle_e2e::cluster::Size;
use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::{Client, Cluster, Folder, hub, shared, until};
use rekindle_wire::api::InstanceState;
use tungstenite::{Message, WebSocket};

const LIMIT: Duration = Duration::from_secs(20);

/// Says the protocol that a request asks for. A WebSocket gets each message back with its number since the boot.
const SERVER: &str = r#"
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
"#;

fn function(settings: &str) -> Folder {
    Folder::server("socket", &format!("concurrency = 4\n{settings}"), SERVER)
}

fn open(platform: &Client) -> WebSocket<TcpStream> {
    let url = platform.url();
    let address = url.strip_prefix("http://").unwrap();
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let (socket, response) = tungstenite::client(format!("ws://{address}/function/socket/"), stream).unwrap();
    assert!(response.headers().contains_key("x-fn-instance"), "{response:?}");
    socket
}

fn echo(socket: &mut WebSocket<TcpStream>, said: &str) -> String {
    socket.send(Message::text(said)).unwrap();
    socket.read().unwrap().into_text().unwrap().to_string()
}

/// Closes it as the protocol has it, from the client's side.
fn close(mut socket: WebSocket<TcpStream>) {
    socket.close(None).unwrap();
    while socket.read().is_ok() {}
}

fn open_tunnels(platform: &Client) -> String {
    let metrics = platform.admin("GET", "/metrics").send().ok().text();
    let line = metrics.lines().find_map(|l| l.strip_prefix("rekindle_gateway_tunnels"));
    line.and_then(|l| l.split_whitespace().last()).unwrap().to_owned()
}

#[test]
fn a_websocket_stays_open_and_its_instance_is_not_idle_meanwhile() {
    let platform = shared();
    platform.deploy(&function(
        "idle = \"1s\"\npark = \"120s\"\nmax_instances = 1\ntimeout = \"2s\"",
    ));
    platform.remove_instances().unwrap();
    let mut first = open(platform);
    let mut second = open(platform);
    assert_eq!(echo(&mut first, "hello"), "1 hello");
    let long = "x".repeat(60_000);
    assert_eq!(echo(&mut second, &long), format!("2 {long}"));
    assert_eq!(open_tunnels(platform), "2");
    // Past the function's timeout, and the time after which it would be parked.
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(echo(&mut first, "still"), "3 still");
    let instances = platform.instances_of("socket");
    assert_eq!(instances.len(), 1);
    assert_eq!(instances[0].state, InstanceState::Ready);
    close(first);
    // Gone without a word.
    drop(second);
    until("no tunnel", LIMIT, || (open_tunnels(platform) == "0").then_some(()));
    until("a parked instance", LIMIT, || {
        let all = platform.instances_of("socket");
        all.iter().all(|i| i.state == InstanceState::Parked).then_some(())
    });
    let mut again = open(platform);
    assert_eq!(echo(&mut again, "after"), "4 after");
    close(again);
}

#[test]
fn only_what_was_asked_for_changes_a_connection_and_no_request_is_hidden() {
    let platform = shared();
    let folder = function("");
    folder.edit(|text| text.replace("\"socket\"", "\"changing\"")).unwrap();
    platform.deploy(&folder);
    let answer = platform.get("changing", "/unasked").error(502, "invalid_response");
    assert!(answer.message().contains("no other protocol"), "{}", answer.text());
    for (asked, told) in [("other", "other"), ("h2c", "None"), ("HTTP/2.0", "None")] {
        let call = platform.request("GET", "/function/changing/");
        let answer = call.header("connection", "upgrade").header("upgrade", asked).send();
        assert_eq!(answer.ok().text(), told);
    }
}

#[test]
fn a_websocket_passes_between_hosts_whose_connections_are_guarded() {
    hub::enter();
    let store = ObjectStore::start_at(hub::ADDRESS);
    let size = Size {
        guarded: true,
        ..Size::default()
    };
    let cluster = Cluster::start_sized(store.endpoint(), store.environment(), size);
    cluster.deploy(&function(""));
    let mut socket = open(&cluster);
    for n in 1..=3 {
        assert_eq!(echo(&mut socket, "over TLS"), format!("{n} over TLS"));
    }
    close(socket);
    until("no tunnel", LIMIT, || (open_tunnels(&cluster) == "0").then_some(()));
}

//! A function that serves WebSocket, and a real client of it.

use std::net::TcpStream;
use std::time::Duration;

use rekindle_testkit::{Client, Folder};
use tungstenite::Message;

/// How long a message may take.
const LIMIT: Duration = Duration::from_secs(20);
const SERVER: &str = include_str!("../functions/websocket/server.py");

/// A connection to it.
pub type WebSocket = tungstenite::WebSocket<TcpStream>;

/// The function: it says the protocol that a request asks for, and sends each message of a WebSocket back with its
/// number since the boot.
pub fn function(name: &str, settings: &str) -> Folder {
    Folder::server(name, &format!("concurrency = 4\n{settings}"), SERVER)
}

/// Connects to the function.
pub fn open(platform: &Client, function: &str) -> WebSocket {
    let url = platform.url();
    let address = url.strip_prefix("http://").unwrap();
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let (socket, response) = tungstenite::client(format!("ws://{address}/function/{function}/"), stream).unwrap();
    assert!(response.headers().contains_key("x-fn-instance"), "{response:?}");
    socket
}

/// Sends a message, and returns the next.
pub fn echo(socket: &mut WebSocket, said: &str) -> String {
    socket.send(Message::text(said)).unwrap();
    socket.read().unwrap().into_text().unwrap().to_string()
}

/// Closes it as the protocol has it, from the client's side.
pub fn close(mut socket: WebSocket) {
    socket.close(None).unwrap();
    while socket.read().is_ok() {}
}

/// How many the gateway says are open.
pub fn open_tunnels(platform: &Client) -> String {
    let metrics = platform.admin("GET", "/metrics").send().ok().text();
    let line = metrics.lines().find_map(|l| l.strip_prefix("rekindle_gateway_tunnels"));
    line.and_then(|l| l.split_whitespace().last()).unwrap().to_owned()
}

//! What an install script reaches of a running platform: nothing.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeSet;
use std::fs;
use std::net::{SocketAddr, TcpStream};

use rekindle_e2e::{Folder, shared};

/// Tries each address of `targets.json` by itself and through the proxy of builds, and writes down what came.
const SCRIPT: &str = r"
const fs = require('fs'), net = require('net');
const proxy = new URL(process.env.HTTPS_PROXY);
const exchange = (host, port, words) => new Promise((done) => {
  const socket = net.connect({ host, port, timeout: 3000 }, () => words ? socket.write(words) : done('connected'));
  socket.on('data', (bytes) => done(String(bytes).split('\r\n')[0]));
  socket.on('timeout', () => done('timeout'));
  socket.on('error', (error) => done(error.code));
  socket.on('close', () => done('closed'));
});
(async () => {
  const found = {};
  for (const target of JSON.parse(fs.readFileSync('targets.json'))) {
    const [host, port] = target.split(':');
    found[target] = [
      await exchange(host, port),
      await exchange(proxy.hostname, proxy.port, `CONNECT ${target} HTTP/1.1\r\nHost: ${target}\r\n\r\n`),
      await exchange(proxy.hostname, proxy.port, `GET http://${target}/healthz HTTP/1.1\r\nHost: ${target}\r\n\r\n`),
    ];
  }
  fs.writeFileSync('found.json', JSON.stringify(found));
  process.exit(0);
})();
";

/// The ports of this machine that take connections on loopback.
fn listening() -> BTreeSet<u16> {
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let sockets = table
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let listening = sockets.filter(|fields| fields[3] == "0A");
    listening
        .map(|fields| u16::from_str_radix(fields[1].split_once(':').unwrap().1, 16).unwrap())
        .filter(|port| TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], *port))).is_ok())
        .collect()
}

#[test]
fn an_install_script_reaches_neither_the_control_plane_nor_anything_else_of_the_host() {
    let gateway = shared().url().split_once("://").unwrap().1.to_owned();
    let ports = listening();
    assert!(
        ports.iter().any(|port| gateway.ends_with(&format!(":{port}"))),
        "{gateway} is among {ports:?}"
    );
    let targets: Vec<String> = ports
        .iter()
        .flat_map(|port| ["127.0.0.1", "localhost"].map(|host| format!("{host}:{port}")))
        .collect();
    let config = "name = \"installs\"\nruntime = \"node\"\nentry = \"main.handler\"\n";
    // npm runs scripts of a package for what has dependencies.
    let package = r#"{"name": "installs", "version": "1.0.0", "dependencies": {"nosy": "file:./nosy"},
        "scripts": {"postinstall": "cd nosy && node install.js"}}"#;
    let nosy = r#"{"name": "nosy", "version": "1.0.0"}"#;
    let folder = Folder::with_config(config)
        .file("main.js", "exports.handler = async () => require('./nosy/found.json');")
        .file("package.json", package);
    fs::create_dir(folder.path().join("nosy")).unwrap();
    let folder = folder
        .file("nosy/package.json", nosy)
        .file("nosy/install.js", SCRIPT)
        .file("nosy/targets.json", &serde_json::to_string(&targets).unwrap());
    shared().deploy(&folder);
    let found = shared().get("installs", "/").ok().json();
    assert_eq!(found.as_object().unwrap().len(), targets.len());
    for (target, came) in found.as_object().unwrap() {
        assert_eq!(came[0], "ECONNREFUSED", "{target} by itself");
        // The proxy is there, and says no.
        for way in [&came[1], &came[2]] {
            assert!(
                way.as_str().unwrap().starts_with("HTTP/1.1 403"),
                "{target} through the proxy: {way}"
            );
        }
    }
}

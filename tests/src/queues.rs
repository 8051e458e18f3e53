//! Queues for tests: NATS' own server, and moto's Amazon SQS, each a process of its own; and `rekindle-events`, which
//! reads from them.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::signal::Signal;
use rekindle_s3_servers::free_address;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::moto::Moto;
use crate::owned::{Owned, START_LIMIT, named};
use crate::{Client, binaries, until};

const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// NATS with JetStream. Dropping it stops it.
pub struct Nats {
    address: SocketAddr,
    dir: TempDir,
    program: PathBuf,
    running: Option<Owned>,
}

impl Nats {
    /// Starts one. `None` if there is none.
    pub fn start() -> Option<Self> {
        let program = named("REKINDLE_NATS_SERVER", "scripts/install-nats-server.sh")?;
        let mut nats = Self {
            address: free_address(Ipv4Addr::LOCALHOST),
            dir: tempfile::tempdir().unwrap(),
            program,
            running: None,
        };
        nats.restart();
        Some(nats)
    }

    /// Starts it again with what it has stored.
    pub fn restart(&mut self) {
        let args = [
            "--addr".to_owned(),
            "127.0.0.1".to_owned(),
            "--port".to_owned(),
            self.address.port().to_string(),
            "--jetstream".to_owned(),
            "--store_dir".to_owned(),
            self.dir.path().join("store").display().to_string(),
        ];
        self.running = Some(Owned::start(&self.program, &args, &[], &self.dir.path().join("log")));
        until("nats-server answers", START_LIMIT, || {
            TcpStream::connect(self.address).ok()
        });
    }

    /// Kills it.
    pub fn kill9(&mut self) {
        self.running = None;
    }

    /// Its address, as sources name it.
    pub fn url(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// A client of it.
    pub fn client(&self) -> NatsClient {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(ANSWER_LIMIT)).unwrap();
        let mut client = NatsClient {
            lines: BufReader::new(stream),
            sent: 0,
        };
        client.line();
        client.send(b"CONNECT {\"verbose\":false,\"headers\":true,\"no_responders\":true}\r\nSUB answers.* 1\r\n");
        client
    }
}

/// A client that speaks as much of the protocol as these tests need.
pub struct NatsClient {
    lines: BufReader<TcpStream>,
    sent: u64,
}

impl NatsClient {
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn send(&mut self, bytes: &[u8]) {
        self.lines.get_mut().write_all(bytes).unwrap();
    }

    /// The payload of the next message.
    fn message(&mut self) -> Vec<u8> {
        loop {
            let line = self.line();
            let words: Vec<&str> = line.split(' ').collect();
            let sizes = match words[0] {
                "PING" => {
                    self.send(b"PONG\r\n");
                    continue;
                }
                "MSG" => (0, words[words.len() - 1].parse::<usize>().unwrap()),
                "HMSG" => {
                    let size = |n: usize| words[words.len() - n].parse::<usize>().unwrap();
                    (size(2), size(1))
                }
                other => panic!("{other}: {line}"),
            };
            let mut body = vec![0; sizes.1 + 2];
            self.lines.read_exact(&mut body).unwrap();
            return body[sizes.0..sizes.1].to_vec();
        }
    }

    fn ask(&mut self, subject: &str, headers: &[(&str, &str)], body: &[u8]) -> Value {
        self.sent += 1;
        let inbox = format!("answers.{}", self.sent);
        let mut lines = String::from("NATS/1.0\r\n");
        for (name, value) in headers {
            lines.push_str(&format!("{name}: {value}\r\n"));
        }
        lines.push_str("\r\n");
        let head = match headers {
            [] => format!("PUB {subject} {inbox} {}\r\n", body.len()),
            _ => format!(
                "HPUB {subject} {inbox} {} {}\r\n{lines}",
                lines.len(),
                lines.len() + body.len()
            ),
        };
        self.send(&[head.as_bytes(), body, b"\r\n"].concat());
        let answer = self.message();
        let answer: Value = serde_json::from_slice(&answer)
            .unwrap_or_else(|e| panic!("{subject}: {e}: {}", String::from_utf8_lossy(&answer)));
        assert!(answer.get("error").is_none(), "{subject}: {answer}");
        answer
    }

    /// Makes a stream of these subjects.
    pub fn make_stream(&mut self, name: &str, subjects: &str) {
        let config = json!({"name": name, "subjects": [subjects]}).to_string();
        self.ask(&format!("$JS.API.STREAM.CREATE.{name}"), &[], config.as_bytes());
    }

    /// Publishes a message durably.
    pub fn publish(&mut self, subject: &str, headers: &[(&str, &str)], body: &Value) {
        self.ask(subject, headers, body.to_string().as_bytes());
    }

    /// Number of messages in a stream.
    pub fn count(&mut self, stream: &str) -> u64 {
        let info = self.ask(&format!("$JS.API.STREAM.INFO.{stream}"), &[], b"");
        info["state"]["messages"].as_u64().unwrap()
    }

    /// Number of messages that a consumer has not delivered, and that are not acknowledged.
    pub fn unsettled(&mut self, stream: &str, consumer: &str) -> u64 {
        let info = self.ask(&format!("$JS.API.CONSUMER.INFO.{stream}.{consumer}"), &[], b"");
        info["num_pending"].as_u64().unwrap() + info["num_ack_pending"].as_u64().unwrap()
    }

    /// A message of a stream: its headers as text and its data, both in base64.
    pub fn stored(&mut self, stream: &str, sequence: u64) -> Value {
        let wanted = json!({"seq": sequence}).to_string();
        let got = self.ask(&format!("$JS.API.STREAM.MSG.GET.{stream}"), &[], wanted.as_bytes());
        got["message"].clone()
    }
}

/// Amazon SQS by moto. Dropping it stops it.
pub struct Sqs(Moto);

impl Sqs {
    /// Starts one. `None` if there is none.
    pub fn start() -> Option<Self> {
        Moto::start_at(Ipv4Addr::LOCALHOST).map(Self)
    }

    /// Its address, as sources name it.
    pub fn url(&self) -> String {
        self.0.url()
    }

    /// Calls an action of the API.
    pub fn call(&self, action: &str, parameters: &Value) -> Value {
        let reply = self
            .0
            .post("", "sqs")
            .header("content-type", "application/x-amz-json-1.0")
            .header("x-amz-target", &format!("AmazonSQS.{action}"))
            .body(parameters.to_string())
            .send();
        assert_eq!(reply.status, 200, "{action}: {}", reply.text());
        match reply.body.is_empty() {
            true => Value::Null,
            false => reply.json(),
        }
    }

    /// Makes a queue, and returns its path below the address.
    pub fn make_queue(&self, name: &str) -> String {
        let made = self.call("CreateQueue", &json!({"QueueName": name}));
        let url = made["QueueUrl"].as_str().unwrap().to_owned();
        url.splitn(4, '/').nth(3).unwrap().to_owned()
    }
}

/// `rekindle-events`. Dropping it kills it.
pub struct Events {
    running: Owned,
    address: SocketAddr,
    dir: TempDir,
}

impl Events {
    /// Starts one for a platform, with these lines in its configuration.
    pub fn start(platform: &Client, key: &str, more: &str, env: &[(&str, String)]) -> Self {
        let (dir, address) = (tempfile::tempdir().unwrap(), free_address(Ipv4Addr::LOCALHOST));
        let (config, key_file) = (dir.path().join("rekindle.toml"), dir.path().join("key"));
        fs::write(&key_file, key).unwrap();
        let text = format!(
            "[events]\ngateway = \"{}\"\nkey-file = \"{}\"\nlisten = \"{address}\"\nstop-seconds = 10\n\
             {more}",
            platform.url(),
            key_file.display()
        );
        fs::write(&config, text).unwrap();
        let program = binaries::directory().join("rekindle-events");
        assert!(program.exists(), "{}: missing: run `make build`", program.display());
        let args = ["--config".to_owned(), config.display().to_string()];
        let env = [env, &[("FN_EVENTS_POLL_SECONDS", "1".to_owned())]].concat();
        let running = Owned::start(&program, &args, &env, &dir.path().join("log"));
        Self { running, address, dir }
    }

    /// Kills it without any chance to clean up.
    pub fn kill9(mut self) {
        self.running.end(Signal::SIGKILL, Duration::from_secs(10));
    }

    /// Stops it in an orderly way.
    #[track_caller]
    pub fn stop(mut self) {
        let status = self.running.end(Signal::SIGTERM, Duration::from_secs(20));
        let status = status.unwrap_or_else(|| panic!("it does not stop:\n{}", self.log()));
        assert!(status.success(), "{status}:\n{}", self.log());
    }

    /// What it logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Its metrics.
    pub fn metrics(&self) -> String {
        crate::Call::get(&format!("http://{}/metrics", self.address))
            .send()
            .ok()
            .text()
    }

    /// Whether the gateway has told it which sources there are.
    pub fn is_ready(&self) -> bool {
        let asked = crate::Call::get(&format!("http://{}/readyz", self.address)).try_send();
        asked.is_ok_and(|reply| reply.status == 200)
    }
}

//! The stores under test, and clients for them.

use std::future::pending;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Child;

use aws_sdk_s3::Client;
use aws_sdk_s3::config::{BehaviorVersion, Builder, Credentials, Region};
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::primitives::ByteStream;
use rekindle_s3_local::{Config, serve};
use rekindle_s3_servers::{Kind, Server};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

pub(crate) const ACCESS_KEY: &str = "AKTEST";
pub(crate) const SECRET_KEY: &str = "secret-for-tests";
pub(crate) const BUCKET: &str = "bucket";

/// A running store with an empty bucket.
pub(crate) struct Target {
    pub(crate) client: Client,
    address: SocketAddr,
    _running: Running,
}

enum Running {
    Task(
        JoinHandle<()>,
        #[allow(dead_code, reason = "held until the server has gone")] TempDir,
    ),
    Process(#[allow(dead_code, reason = "held for its drop, which ends it")] Server),
}

/// A child process that does not outlive the test.
pub(crate) struct Process(pub(crate) Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Running::Task(task, _) = self {
            task.abort();
        }
    }
}

impl Target {
    pub(crate) async fn embedded() -> Target {
        let root = tempfile::tempdir().unwrap();
        let (address, task) = start_embedded(root.path()).await;
        Target {
            client: client(address, SECRET_KEY),
            address,
            _running: Running::Task(task, root),
        }
    }

    /// A store that is not ours. `None` if it was skipped, which is printed.
    pub(crate) async fn other(kind: Kind) -> Option<Target> {
        let server = Server::start(kind, Ipv4Addr::LOCALHOST, (ACCESS_KEY, SECRET_KEY))?;
        let address = server.address();
        let client = client(address, SECRET_KEY);
        client.create_bucket().bucket(BUCKET).send().await.unwrap();
        Some(Target {
            client,
            address,
            _running: Running::Process(server),
        })
    }

    pub(crate) fn client_with_secret(&self, secret: &str) -> Client {
        client(self.address, secret)
    }

    pub(crate) async fn put(&self, key: &str, body: impl Into<Vec<u8>>) -> String {
        put(&self.client, key, body).await
    }

    pub(crate) async fn get(&self, key: &str) -> Vec<u8> {
        get(&self.client, key).await
    }
}

/// Serves `root` in this process. The address answers when this returns.
pub(crate) async fn start_embedded(root: &Path) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let config = config(root);
    (
        address,
        tokio::spawn(async move { serve(config, listener, pending()).await.unwrap() }),
    )
}

pub(crate) fn config(root: &Path) -> Config {
    Config {
        root: root.to_owned(),
        access_key: ACCESS_KEY.into(),
        secret_key: SECRET_KEY.into(),
        buckets: vec![BUCKET.into()],
    }
}

pub(crate) fn client(address: SocketAddr, secret: &str) -> Client {
    Client::from_conf(builder(address, secret).build())
}

pub(crate) fn builder(address: SocketAddr, secret: &str) -> Builder {
    // Retries would hide what a store does only occasionally.
    aws_sdk_s3::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .endpoint_url(format!("http://{address}"))
        .region(Region::new("us-east-1"))
        .credentials_provider(Credentials::new(ACCESS_KEY, secret, None, None, "test"))
        .retry_config(aws_sdk_s3::config::retry::RetryConfig::disabled())
        .force_path_style(true)
}

/// Puts an object and returns its ETag.
pub(crate) async fn put(client: &Client, key: &str, body: impl Into<Vec<u8>>) -> String {
    let put = client
        .put_object()
        .bucket(BUCKET)
        .key(key)
        .body(ByteStream::from(body.into()))
        .send()
        .await;
    put.unwrap_or_else(|error| panic!("put {key:?}: {error:?}"))
        .e_tag
        .unwrap()
}

pub(crate) async fn get(client: &Client, key: &str) -> Vec<u8> {
    let got = client.get_object().bucket(BUCKET).key(key).send().await;
    let got = got.unwrap_or_else(|error| panic!("get {key:?}: {error:?}"));
    got.body.collect().await.unwrap().into_bytes().to_vec()
}

/// Status and code of a response that must be an error.
pub(crate) fn refusal<T: std::fmt::Debug, E>(result: Result<T, SdkError<E>>) -> (u16, String)
where
    E: ProvideErrorMetadata + std::fmt::Debug,
{
    let error = result.expect_err("this must be refused");
    let status = error
        .raw_response()
        .unwrap_or_else(|| panic!("no answer at all: {error:?}"))
        .status()
        .as_u16();
    (status, error.code().unwrap_or_default().to_owned())
}

/// Bytes that differ everywhere and identify their `seed`.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

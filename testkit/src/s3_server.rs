//! The S3 server of ours, within a test's own process.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use rekindle_s3_local::{Config, serve};
use tokio::net::TcpListener;

use crate::block_on;

pub(crate) const KEY: &str = "tests";
pub(crate) const SECRET: &str = "secret-of-the-tests";
pub(crate) const BUCKET: &str = "rekindle";

/// Serves the objects of a directory, which is empty or was such a server's, until `end`. Returns where.
pub(crate) fn start(root: &Path, address: Ipv4Addr, end: impl Future<Output = ()> + Send + 'static) -> SocketAddr {
    let config = Config {
        root: root.to_owned(),
        access_key: KEY.to_owned(),
        secret_key: SECRET.to_owned(),
        buckets: vec![BUCKET.to_owned()],
    };
    block_on(async move {
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let server = listener.local_addr().unwrap();
        tokio::spawn(async move { serve(config, listener, end).await.unwrap() });
        server
    })
}

/// The usual AWS variables, with which a role identifies itself to an S3 server.
pub fn environment(key: &str, secret: &str) -> Vec<(String, String)> {
    let variables = [
        ("AWS_ACCESS_KEY_ID", key),
        ("AWS_SECRET_ACCESS_KEY", secret),
        ("AWS_REGION", "us-east-1"),
    ];
    variables.map(|(k, v)| (k.to_owned(), v.to_owned())).to_vec()
}

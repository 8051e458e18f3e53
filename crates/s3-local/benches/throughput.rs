//! The embedded server's cost over the bare file system: durable puts of small objects one by one and many at once,
//! gets, ranged gets, a large object each way. Run it with `cargo bench -p rekindle-s3-local`. The optional argument is
//! a directory on the disk to measure; the default is the system's temporary one.

#![allow(clippy::unwrap_used, reason = "a benchmark ends at the first surprise")]

use std::future::{Future, pending};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use aws_sdk_s3::Client;
use aws_sdk_s3::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_s3::primitives::ByteStream;
use futures::StreamExt;
use rekindle_s3_local::{Config, serve};
use tokio::net::TcpListener;

const SMALL: usize = 4096;
const LARGE: usize = 128 * 1024 * 1024;
const COUNT: usize = 400;

#[tokio::main(flavor = "multi_thread")]
async fn main() {
    let parent = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let parent = parent.map_or_else(std::env::temp_dir, Into::into);
    let root = tempfile::tempdir_in(parent).unwrap();

    println!("{:<44} {:>10} {:>10} {:>12}", "", "median", "p99", "per second");
    bare(root.path());

    let client = start(&root.path().join("s3")).await;
    let put = |key: String, len: usize| {
        let client = client.clone();
        async move {
            let body = ByteStream::from(vec![7; len]);
            let put = client.put_object().bucket("bucket").key(key).body(body);
            put.send().await.unwrap();
        }
    };
    let get = |key: String, range: Option<String>| {
        let client = client.clone();
        async move {
            let get = client.get_object().bucket("bucket").key(key);
            let got = get.set_range(range).send().await.unwrap();
            got.body.collect().await.unwrap().into_bytes().len()
        }
    };
    for at_once in [1, 4, 16, 64] {
        let name = format!("put 4 KiB, {at_once} at once");
        run(&name, at_once, |n| put(format!("{at_once}/{n}"), SMALL)).await;
    }
    for at_once in [1, 16] {
        let name = format!("get 4 KiB, {at_once} at once");
        run(&name, at_once, |n| get(format!("16/{n}"), None)).await;
    }
    let begin = Instant::now();
    put("large".to_owned(), LARGE).await;
    rate("put 128 MiB", begin.elapsed());
    let begin = Instant::now();
    get("large".to_owned(), None).await;
    rate("get 128 MiB", begin.elapsed());
    let range = |n: usize| {
        let start = n * 7919 * 4096 % (LARGE - 65536);
        Some(format!("bytes={start}-{}", start + 65535))
    };
    run("get a range of 64 KiB out of 128 MiB", 1, |n| {
        get("large".to_owned(), range(n))
    })
    .await;
}

/// The floor: write, fdatasync, rename, fsync of the directory, with no server at all.
fn bare(dir: &Path) {
    let handle = std::fs::File::open(dir).unwrap();
    let mut times = Vec::new();
    let begin = Instant::now();
    for n in 0..COUNT {
        let start = Instant::now();
        let (from, to) = (dir.join("temp"), dir.join(n.to_string()));
        let mut file = std::fs::File::create(&from).unwrap();
        file.write_all(&[7; SMALL]).unwrap();
        file.sync_data().unwrap();
        std::fs::rename(from, to).unwrap();
        handle.sync_all().unwrap();
        times.push(start.elapsed());
    }
    report("bare: 4 KiB, fdatasync, rename, fsync", times, begin.elapsed());
}

async fn run<F: Future<Output = impl Sized>>(name: &str, at_once: usize, one: impl Fn(usize) -> F) {
    let begin = Instant::now();
    let times = futures::stream::iter((0..COUNT).map(|n| {
        let work = one(n);
        async {
            let start = Instant::now();
            work.await;
            start.elapsed()
        }
    }));
    let times = times.buffer_unordered(at_once).collect().await;
    report(name, times, begin.elapsed());
}

fn report(name: &str, mut times: Vec<Duration>, total: Duration) {
    times.sort_unstable();
    let (median, p99) = (times[times.len() / 2], times[times.len() * 99 / 100]);
    let per_second = times.len() as f64 / total.as_secs_f64();
    println!("{name:<44} {median:>10.2?} {p99:>10.2?} {per_second:>12.0}");
}

fn rate(name: &str, time: Duration) {
    let rate = LARGE as f64 / 1048576.0 / time.as_secs_f64();
    println!("{name:<44} {time:>10.2?} {:>10} {rate:>7.0} MiB/s", "");
}

async fn start(root: &Path) -> Client {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let config = Config {
        root: root.to_owned(),
        access_key: "AK".into(),
        secret_key: "secret".into(),
        buckets: vec!["bucket".into()],
    };
    tokio::spawn(async move { serve(config, listener, pending()).await.unwrap() });
    let config = aws_sdk_s3::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .endpoint_url(endpoint)
        .region(Region::new("us-east-1"))
        .credentials_provider(Credentials::new("AK", "secret", None, None, "bench"))
        .force_path_style(true);
    Client::from_conf(config.build())
}

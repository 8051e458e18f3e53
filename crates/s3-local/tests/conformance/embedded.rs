//! What can only be done to our own server: restarts, damage on disk, keys that a tree of directories cannot hold.

use std::path::{Path, PathBuf};
use std::time::Duration;

use aws_sdk_s3::primitives::ByteStream;
use rekindle_s3_local::serve;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::target::{BUCKET, SECRET_KEY, Target, builder, client, config, get, noise, put, refusal, start_embedded};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_key_can_be_kept() {
    let target = Target::embedded().await;
    let long = "x/".repeat(512);
    let keys = [
        "a",
        "a/",
        "a/b",
        "a//b",
        "/",
        "//",
        "/a",
        "..",
        ".",
        "../../x",
        "a/../b",
        "~",
        "%",
        "\u{7f}",
        "\u{10ffff}",
        &long,
    ];
    for key in keys {
        target.put(key, key).await;
    }
    for key in keys {
        assert_eq!(String::from_utf8(target.get(key).await).unwrap(), key);
    }
    let mut expected = keys.to_vec();
    expected.sort_unstable();
    let listed = target.client.list_objects_v2().bucket(BUCKET).send().await.unwrap();
    assert_eq!(
        listed
            .contents()
            .iter()
            .map(|object| object.key().unwrap())
            .collect::<Vec<_>>(),
        expected
    );
    let folded = target
        .client
        .list_objects_v2()
        .bucket(BUCKET)
        .delimiter("/")
        .prefix("a")
        .send()
        .await
        .unwrap();
    assert_eq!(
        folded
            .contents()
            .iter()
            .map(|object| object.key().unwrap())
            .collect::<Vec<_>>(),
        ["a"]
    );
    assert_eq!(folded.common_prefixes()[0].prefix(), Some("a/"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_and_uploads_outlive_a_restart() {
    let root = tempfile::tempdir().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let config = config(root.path());
    let server = tokio::spawn(async move { serve(config, listener, async { drop(stopped.await) }).await });
    let before = client(address, SECRET_KEY);
    let etag = put(&before, "kept/ü", noise(1, 200_000)).await;
    put(&before, "deleted", "x").await;
    before
        .delete_object()
        .bucket(BUCKET)
        .key("deleted")
        .send()
        .await
        .unwrap();
    before.create_bucket().bucket("another").send().await.unwrap();
    let id = before
        .create_multipart_upload()
        .bucket(BUCKET)
        .key("later")
        .send()
        .await
        .unwrap()
        .upload_id
        .unwrap();
    let part = before
        .upload_part()
        .bucket(BUCKET)
        .key("later")
        .upload_id(&id)
        .part_number(1)
        .body(ByteStream::from_static(b"part"));
    let part = part.send().await.unwrap().e_tag.unwrap();
    drop(before);
    stop.send(()).unwrap();
    tokio::time::timeout(Duration::from_secs(20), server)
        .await
        .expect("the server stops")
        .unwrap()
        .unwrap();

    let (address, _server) = start_embedded(root.path()).await;
    let after = client(address, SECRET_KEY);
    assert!(get(&after, "kept/ü").await == noise(1, 200_000));
    let head = after.head_object().bucket(BUCKET).key("kept/ü").send().await.unwrap();
    assert_eq!(head.e_tag, Some(etag));
    let listed = after.list_objects_v2().bucket(BUCKET).send().await.unwrap();
    assert_eq!(
        listed
            .contents()
            .iter()
            .map(|object| object.key().unwrap())
            .collect::<Vec<_>>(),
        ["kept/ü"]
    );
    assert_eq!(after.list_buckets().send().await.unwrap().buckets().len(), 2);
    let part = aws_sdk_s3::types::CompletedPart::builder()
        .part_number(1)
        .e_tag(part)
        .build();
    let parts = aws_sdk_s3::types::CompletedMultipartUpload::builder()
        .parts(part)
        .build();
    let complete = after
        .complete_multipart_upload()
        .bucket(BUCKET)
        .key("later")
        .upload_id(id)
        .multipart_upload(parts);
    complete.send().await.unwrap();
    assert_eq!(get(&after, "later").await, b"part");
}

/// aws-chunked is how a body was sent; versitygw keeps it as the object's encoding, S3 and we do not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_encoding_of_a_transfer_is_not_the_object_s() {
    let target = Target::embedded().await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), noise(1, 100_000)).unwrap();
    let chunked = ByteStream::from_path(file.path()).await.unwrap();
    target
        .client
        .put_object()
        .bucket(BUCKET)
        .key("plain")
        .body(chunked)
        .send()
        .await
        .unwrap();
    let chunked = ByteStream::from_path(file.path()).await.unwrap();
    target
        .client
        .put_object()
        .bucket(BUCKET)
        .key("zip")
        .content_encoding("gzip")
        .body(chunked)
        .send()
        .await
        .unwrap();
    let encoding = async |key| {
        target
            .client
            .head_object()
            .bucket(BUCKET)
            .key(key)
            .send()
            .await
            .unwrap()
            .content_encoding
    };
    assert_eq!(encoding("plain").await, None);
    assert_eq!(encoding("zip").await.as_deref(), Some("gzip"));
}

/// HTTP dates are whole seconds, so the date in a response must count as "not modified since"; versitygw keeps
/// fractions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_date_that_was_given_is_not_older_than_the_object() {
    let target = Target::embedded().await;
    target.put("k", "x").await;
    let get = || target.client.get_object().bucket(BUCKET).key("k");
    let written = get().send().await.unwrap().last_modified.unwrap();
    assert_eq!(refusal(get().if_modified_since(written).send().await).0, 304);
    get().if_unmodified_since(written).send().await.unwrap();
}

fn object_files(root: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(root.join("buckets").join(BUCKET).join("objects"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect()
}

fn flip(path: &Path, at: u64) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x04], at).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_bit_on_disk_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    let (address, _server) = start_embedded(root.path()).await;
    // A client that compares nothing itself: the error must be the server's.
    let config = builder(address, SECRET_KEY)
        .response_checksum_validation(aws_sdk_s3::config::ResponseChecksumValidation::WhenRequired);
    let client = aws_sdk_s3::Client::from_conf(config.build());
    let body = noise(1, 3_000_000);
    put(&client, "k", body.clone()).await;
    let path = object_files(root.path()).pop().unwrap();
    let file_len = std::fs::metadata(&path).unwrap().len();
    let internal = (500, "InternalError".to_owned());

    for at in [0, 400_000, 3_000_000, file_len - 100, file_len - 1] {
        flip(&path, at);
        assert_eq!(
            refusal(client.get_object().bucket(BUCKET).key("k").send().await),
            internal,
            "byte {at}"
        );
        flip(&path, at);
    }
    // Further on the response has begun: it breaks off, and what came until then is right.
    flip(&path, 2_500_000);
    let mut answer = client.get_object().bucket(BUCKET).key("k").send().await.unwrap().body;
    let mut came = Vec::new();
    let broken = loop {
        match answer.try_next().await {
            Ok(Some(bytes)) => came.extend_from_slice(&bytes),
            Ok(None) => break false,
            Err(_) => break true,
        }
    };
    assert!(
        broken && came.len() < 2_500_000 && came == body[..came.len()],
        "{} bytes came, broken: {broken}",
        came.len()
    );
    let range = client
        .get_object()
        .bucket(BUCKET)
        .key("k")
        .range("bytes=2490000-2510000");
    assert_eq!(refusal(range.send().await), internal);
    flip(&path, 2_500_000);
    assert!(get(&client, "k").await == body);

    std::fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(file_len - 1)
        .unwrap();
    assert_eq!(
        refusal(client.get_object().bucket(BUCKET).key("k").send().await),
        internal
    );
    put(&client, "k", "whole again").await;
    assert_eq!(get(&client, "k").await, b"whole again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_key_id_and_an_unsigned_request_are_refused() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let root = tempfile::tempdir().unwrap();
    let (address, _server) = start_embedded(root.path()).await;
    put(&client(address, SECRET_KEY), "k", "x").await;
    let stranger = aws_sdk_s3::config::Credentials::new("AKSTRANGER", SECRET_KEY, None, None, "test");
    let stranger = aws_sdk_s3::Client::from_conf(builder(address, SECRET_KEY).credentials_provider(stranger).build());
    assert_eq!(
        refusal(stranger.get_object().bucket(BUCKET).key("k").send().await),
        (403, "InvalidAccessKeyId".to_owned())
    );

    let mut raw = tokio::net::TcpStream::connect(address).await.unwrap();
    raw.write_all(b"GET /bucket/k HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    raw.read_to_string(&mut answer).await.unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 403") && answer.contains("AccessDenied"),
        "{answer}"
    );
}

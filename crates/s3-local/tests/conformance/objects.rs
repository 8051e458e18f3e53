//! One object at a time.

use std::collections::HashMap;

use aws_sdk_s3::Client;
use aws_sdk_s3::primitives::{ByteStream, DateTime};
use aws_sdk_s3::types::{ChecksumAlgorithm, ChecksumMode, Delete, ObjectIdentifier};

use crate::target::{BUCKET, Target, noise, refusal};

pub(crate) async fn what_is_put_is_what_is_got(target: &Target) {
    let client = &target.client;
    let body = noise(1, 100_000);
    let put = client
        .put_object()
        .bucket(BUCKET)
        .key("k")
        .body(ByteStream::from(body.clone()))
        .content_type("text/x-test");
    let put = put
        .metadata("colour", "blue")
        .cache_control("no-store")
        .send()
        .await
        .unwrap();

    let got = client.get_object().bucket(BUCKET).key("k").send().await.unwrap();
    assert_eq!(got.e_tag, put.e_tag);
    assert_eq!(got.content_length, Some(100_000));
    assert_eq!(got.content_type.as_deref(), Some("text/x-test"));
    assert_eq!(got.cache_control.as_deref(), Some("no-store"));
    assert_eq!(
        got.metadata,
        Some(HashMap::from([("colour".to_owned(), "blue".to_owned())]))
    );
    assert!(got.body.collect().await.unwrap().into_bytes() == body);

    let head = client.head_object().bucket(BUCKET).key("k").send().await.unwrap();
    assert_eq!((head.e_tag, head.content_length), (put.e_tag, Some(100_000)));
    assert_eq!(head.content_type.as_deref(), Some("text/x-test"));
    assert_eq!(head.metadata.unwrap()["colour"], "blue");
    let age = std::time::SystemTime::now().duration_since(head.last_modified.unwrap().try_into().unwrap());
    assert!(age.map_or(0, |age| age.as_secs()) < 120);
}

async fn range(client: &Client, key: &str, range: &str) -> (Vec<u8>, String) {
    let got = client.get_object().bucket(BUCKET).key(key).range(range).send().await;
    let got = got.unwrap_or_else(|error| panic!("{range}: {error:?}"));
    let shown = got.content_range.clone().unwrap_or_default();
    (got.body.collect().await.unwrap().into_bytes().to_vec(), shown)
}

pub(crate) async fn a_range_is_the_slice_it_names(target: &Target) {
    let client = &target.client;
    let len = 1_300_000;
    let body = noise(2, len);
    target.put("k", body.clone()).await;
    let cases = [
        ("bytes=0-0".to_owned(), 0..1),
        ("bytes=0-65535".to_owned(), 0..65536),
        ("bytes=65535-65536".to_owned(), 65535..65537),
        ("bytes=500000-1200000".to_owned(), 500_000..1_200_001),
        ("bytes=1000000-".to_owned(), 1_000_000..len),
        ("bytes=-7".to_owned(), len - 7..len),
        ("bytes=-99999999".to_owned(), 0..len),
        (format!("bytes=1299999-{len}"), len - 1..len),
    ];
    for (asked, slice) in cases {
        let (found, shown) = range(client, "k", &asked).await;
        assert_eq!(
            shown,
            format!("bytes {}-{}/{len}", slice.start, slice.end - 1),
            "{asked}"
        );
        assert!(found == body[slice], "{asked}");
    }
    for outside in [format!("bytes={len}-"), "bytes=99999999-99999999".to_owned()] {
        let refused = refusal(client.get_object().bucket(BUCKET).key("k").range(&outside).send().await);
        assert_eq!(refused, (416, "InvalidRange".to_owned()), "{outside}");
    }
}

pub(crate) async fn an_empty_object_is_an_object(target: &Target) {
    target.put("empty", []).await;
    let head = target
        .client
        .head_object()
        .bucket(BUCKET)
        .key("empty")
        .send()
        .await
        .unwrap();
    assert_eq!(head.content_length, Some(0));
    assert!(target.get("empty").await.is_empty());
    let refused = refusal(
        target
            .client
            .get_object()
            .bucket(BUCKET)
            .key("empty")
            .range("bytes=0-0")
            .send()
            .await,
    );
    assert_eq!(refused.0, 416);
}

pub(crate) async fn a_large_object_comes_back(target: &Target) {
    let body = noise(3, 20_000_003);
    target.put("large", body.clone()).await;
    assert!(target.get("large").await == body);
}

pub(crate) async fn a_streamed_body_of_known_length_comes_back(target: &Target) {
    // A file is sent as aws-chunked with its checksum in a trailer, for each algorithm in turn.
    let file = tempfile::NamedTempFile::new().unwrap();
    let body = noise(4, 3_000_000);
    std::fs::write(file.path(), &body).unwrap();
    let algorithms = [
        ChecksumAlgorithm::Crc32,
        ChecksumAlgorithm::Crc32C,
        ChecksumAlgorithm::Sha1,
        ChecksumAlgorithm::Sha256,
        ChecksumAlgorithm::Crc64Nvme,
    ];
    for algorithm in algorithms {
        let stream = ByteStream::from_path(file.path()).await.unwrap();
        let put = target
            .client
            .put_object()
            .bucket(BUCKET)
            .key(algorithm.as_str())
            .checksum_algorithm(algorithm.clone());
        put.body(stream).send().await.unwrap();
        // With the mode enabled the client compares the checksum that the store kept.
        let got = target
            .client
            .get_object()
            .bucket(BUCKET)
            .key(algorithm.as_str())
            .checksum_mode(ChecksumMode::Enabled);
        let got = got.send().await.unwrap();
        let kept = [
            &got.checksum_crc32,
            &got.checksum_crc32_c,
            &got.checksum_sha1,
            &got.checksum_sha256,
            &got.checksum_crc64_nvme,
        ];
        assert!(kept.iter().any(|sum| sum.is_some()), "{algorithm} is not given back");
        assert!(got.body.collect().await.unwrap().into_bytes() == body, "{algorithm}");
    }
}

pub(crate) async fn an_overwrite_replaces_body_and_metadata(target: &Target) {
    let client = &target.client;
    let first = client
        .put_object()
        .bucket(BUCKET)
        .key("k")
        .metadata("old", "1")
        .body(ByteStream::from_static(b"first, longer"));
    let first = first.send().await.unwrap().e_tag;
    let second = target.put("k", "second").await;
    assert_ne!(first.as_deref(), Some(second.as_str()));
    let got = client.get_object().bucket(BUCKET).key("k").send().await.unwrap();
    assert!(got.metadata.is_none_or(|metadata| metadata.is_empty()));
    assert_eq!(got.body.collect().await.unwrap().into_bytes(), "second");
}

pub(crate) async fn a_deleted_object_is_gone_and_deleting_again_is_no_error(target: &Target) {
    target.put("k", "x").await;
    for _ in 0..2 {
        target
            .client
            .delete_object()
            .bucket(BUCKET)
            .key("k")
            .send()
            .await
            .unwrap();
        let refused = refusal(target.client.get_object().bucket(BUCKET).key("k").send().await);
        assert_eq!(refused, (404, "NoSuchKey".to_owned()));
    }
}

pub(crate) async fn many_objects_are_deleted_at_once(target: &Target) {
    for number in 0..20 {
        target.put(&format!("many/{number}"), "x").await;
    }
    target.put("kept", "x").await;
    let objects = (0..20)
        .map(|number| {
            ObjectIdentifier::builder()
                .key(format!("many/{number}"))
                .build()
                .unwrap()
        })
        .collect();
    let objects = Delete::builder().set_objects(Some(objects)).build().unwrap();
    let deleted = target
        .client
        .delete_objects()
        .bucket(BUCKET)
        .delete(objects)
        .send()
        .await
        .unwrap();
    assert_eq!(deleted.deleted().len(), 20);
    assert!(deleted.errors().is_empty());
    let left = target.client.list_objects_v2().bucket(BUCKET).send().await.unwrap();
    assert_eq!(
        left.contents()
            .iter()
            .map(|object| object.key().unwrap())
            .collect::<Vec<_>>(),
        ["kept"]
    );
}

pub(crate) async fn what_is_missing_is_named_as_such(target: &Target) {
    let client = &target.client;
    let no_key = (404, "NoSuchKey".to_owned());
    let no_bucket = (404, "NoSuchBucket".to_owned());
    assert_eq!(
        refusal(client.get_object().bucket(BUCKET).key("nothing").send().await),
        no_key
    );
    assert_eq!(
        refusal(client.get_object().bucket("no-such-bucket").key("k").send().await),
        no_bucket
    );
    assert_eq!(
        refusal(client.list_objects_v2().bucket("no-such-bucket").send().await),
        no_bucket
    );
    let put = client
        .put_object()
        .bucket("no-such-bucket")
        .key("k")
        .body(ByteStream::from_static(b"x"));
    assert_eq!(refusal(put.send().await), no_bucket);
    let head = client
        .head_object()
        .bucket(BUCKET)
        .key("nothing")
        .send()
        .await
        .unwrap_err();
    assert!(head.into_service_error().is_not_found());
    let head = client.head_bucket().bucket("no-such-bucket").send().await.unwrap_err();
    assert!(head.into_service_error().is_not_found());
    client.head_bucket().bucket(BUCKET).send().await.unwrap();
}

pub(crate) async fn odd_keys_are_kept_apart(target: &Target) {
    // Keys that every store can keep. Those that only a store without a tree of directories can are in `embedded`.
    let long = format!("{}/{}", "l".repeat(200), "o".repeat(200));
    let keys = [
        "plain",
        "dir/plain",
        "with space",
        "ümläut/日本語",
        "a+b",
        "a%2Fb",
        "a%b",
        "q?x=1&y=2",
        "h#h",
        "-.~_!*'();:@&=$,",
        &long,
    ];
    for key in keys {
        target.put(key, key).await;
    }
    for key in keys {
        assert_eq!(String::from_utf8(target.get(key).await).unwrap(), key);
    }
    let listed = target.client.list_objects_v2().bucket(BUCKET).send().await.unwrap();
    let mut expected = keys.to_vec();
    expected.sort_unstable();
    assert_eq!(
        listed
            .contents()
            .iter()
            .map(|object| object.key().unwrap())
            .collect::<Vec<_>>(),
        expected
    );
}

pub(crate) async fn reads_honour_their_conditions(target: &Target) {
    let get = || target.client.get_object().bucket(BUCKET).key("k");
    let etag = target.put("k", "x").await;
    get().if_match(&etag).send().await.unwrap();
    assert_eq!(refusal(get().if_match("\"other\"").send().await).0, 412);
    assert_eq!(refusal(get().if_none_match(&etag).send().await).0, 304);
    get().if_none_match("\"other\"").send().await.unwrap();
    get()
        .if_modified_since(DateTime::from_secs(1_000_000_000))
        .send()
        .await
        .unwrap();
    assert_eq!(
        refusal(
            get()
                .if_unmodified_since(DateTime::from_secs(1_000_000_000))
                .send()
                .await
        )
        .0,
        412
    );
}

pub(crate) async fn a_wrong_checksum_stores_nothing(target: &Target) {
    let put = || {
        target
            .client
            .put_object()
            .bucket(BUCKET)
            .key("k")
            .body(ByteStream::from_static(b"body"))
    };
    assert_eq!(
        refusal(put().content_md5("kAFQmDzST7DWlj99KOF/cg==").send().await),
        (400, "BadDigest".to_owned())
    );
    assert_eq!(refusal(put().checksum_crc32("y/Q5Jg==").send().await).0, 400);
    assert_eq!(
        refusal(target.client.get_object().bucket(BUCKET).key("k").send().await).0,
        404
    );
    put().content_md5("hBotaJrYa9FhFEdFPCLG/A==").send().await.unwrap();
    assert_eq!(target.get("k").await, b"body");
}

pub(crate) async fn a_copy_is_the_same_object(target: &Target) {
    let client = &target.client;
    let body = noise(5, 700_000);
    let put = client
        .put_object()
        .bucket(BUCKET)
        .key("from here")
        .metadata("m", "1")
        .body(ByteStream::from(body.clone()));
    put.send().await.unwrap();
    client
        .copy_object()
        .bucket(BUCKET)
        .key("to")
        .copy_source("bucket/from%20here")
        .send()
        .await
        .unwrap();
    let got = client.get_object().bucket(BUCKET).key("to").send().await.unwrap();
    assert_eq!(got.metadata.as_ref().unwrap()["m"], "1");
    assert!(got.body.collect().await.unwrap().into_bytes() == body);
    let missing = client
        .copy_object()
        .bucket(BUCKET)
        .key("to")
        .copy_source("bucket/nothing")
        .send()
        .await;
    assert_eq!(refusal(missing).0, 404);
}

pub(crate) async fn the_wrong_secret_is_refused(target: &Target) {
    target.put("k", "x").await;
    let stranger = target.client_with_secret("not-the-secret");
    let refused = (403, "SignatureDoesNotMatch".to_owned());
    assert_eq!(
        refusal(stranger.get_object().bucket(BUCKET).key("k").send().await),
        refused
    );
    assert_eq!(
        refusal(
            stranger
                .put_object()
                .bucket(BUCKET)
                .key("k")
                .body(ByteStream::from_static(b"y"))
                .send()
                .await
        ),
        refused
    );
    assert_eq!(
        refusal(stranger.delete_object().bucket(BUCKET).key("k").send().await),
        refused
    );
    assert_eq!(target.get("k").await, b"x");
}

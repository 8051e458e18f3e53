//! Many writers of one key.

use aws_sdk_s3::primitives::ByteStream;
use tokio::task::JoinSet;

use crate::target::{BUCKET, Target, get, noise, refusal};

const WRITERS: u64 = 16;

pub(crate) async fn one_creator_of_many_wins(target: &Target) {
    for round in 0..5_u64 {
        let key = format!("race/{round}");
        let mut writers = JoinSet::new();
        for writer in 0..WRITERS {
            let put = target.client.put_object().bucket(BUCKET).key(&key).if_none_match("*");
            let put = put.body(ByteStream::from(noise(round * 100 + writer, 50_000)));
            writers.spawn(async move { (writer, put.send().await) });
        }
        let mut winners = Vec::new();
        while let Some(finished) = writers.join_next().await {
            match finished.unwrap() {
                (writer, Ok(_)) => winners.push(writer),
                (_, refused) => {
                    let (status, code) = refusal(refused);
                    // S3 may also answer that it could not decide, and the client should ask again.
                    assert!(
                        matches!(
                            (status, code.as_str()),
                            (412, "PreconditionFailed") | (409, "ConditionalRequestConflict")
                        ),
                        "{status} {code}"
                    );
                }
            }
        }
        assert_eq!(winners.len(), 1, "round {round}: {winners:?} won");
        assert!(
            target.get(&key).await == noise(round * 100 + winners[0], 50_000),
            "round {round}: not the winner's bytes"
        );
    }
}

pub(crate) async fn overwrites_never_mix(target: &Target) {
    const LEN: usize = 600_000;
    target.put("k", noise(0, LEN)).await;
    let mut tasks = JoinSet::new();
    for writer in 0..8 {
        let client = target.client.clone();
        tasks.spawn(async move {
            for _ in 0..5 {
                crate::target::put(&client, "k", noise(writer, LEN)).await;
            }
        });
    }
    for _ in 0..4 {
        let client = target.client.clone();
        tasks.spawn(async move {
            for _ in 0..15 {
                let found = get(&client, "k").await;
                assert!(
                    (0..8).any(|writer| found == noise(writer, LEN)),
                    "bytes that nobody wrote"
                );
            }
        });
    }
    while let Some(finished) = tasks.join_next().await {
        finished.unwrap();
    }
    let last = target.get("k").await;
    assert!((0..8).any(|writer| last == noise(writer, LEN)));
}

pub(crate) async fn a_compare_and_swap_happens_once(target: &Target) {
    let etag = target.put("k", "before").await;
    let missing = target
        .client
        .put_object()
        .bucket(BUCKET)
        .key("none")
        .if_match(&etag)
        .body(ByteStream::from_static(b"x"));
    assert_eq!(refusal(missing.send().await).0, 404);
    let other = target
        .client
        .put_object()
        .bucket(BUCKET)
        .key("k")
        .if_match("\"0123\"")
        .body(ByteStream::from_static(b"x"));
    assert_eq!(refusal(other.send().await).0, 412);
    let right = target
        .client
        .put_object()
        .bucket(BUCKET)
        .key("k")
        .if_match(&etag)
        .body(ByteStream::from_static(b"after"));
    right.send().await.unwrap();
    assert_eq!(target.get("k").await, b"after");
}

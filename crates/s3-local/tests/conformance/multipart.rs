//! Multipart uploads.

use aws_sdk_s3::Client;
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{CompletedMultipartUpload, CompletedPart};

use crate::target::{BUCKET, Target, noise, refusal};

/// Smallest size of any part except the last.
const PART_LEN: usize = 5 * 1024 * 1024;

async fn create(client: &Client, key: &str) -> String {
    let created = client
        .create_multipart_upload()
        .bucket(BUCKET)
        .key(key)
        .content_type("text/x-test")
        .metadata("m", "1");
    created.send().await.unwrap().upload_id.unwrap()
}

async fn send(client: &Client, key: &str, id: &str, number: i32, body: Vec<u8>) -> CompletedPart {
    let part = client
        .upload_part()
        .bucket(BUCKET)
        .key(key)
        .upload_id(id)
        .part_number(number)
        .body(ByteStream::from(body));
    let part = part.send().await.unwrap();
    CompletedPart::builder()
        .part_number(number)
        .e_tag(part.e_tag.unwrap())
        .build()
}

fn chosen(parts: Vec<CompletedPart>) -> CompletedMultipartUpload {
    CompletedMultipartUpload::builder().set_parts(Some(parts)).build()
}

pub(crate) async fn parts_become_one_object(target: &Target) {
    let client = &target.client;
    let id = create(client, "k").await;
    let bodies = [noise(1, PART_LEN), noise(2, PART_LEN + 12_345), noise(3, 77)];
    let mut parts = Vec::new();
    // Out of order, as parallel uploads come.
    for number in [2, 3, 1] {
        parts.push(send(client, "k", &id, number, bodies[number as usize - 1].clone()).await);
    }
    let listed = client
        .list_parts()
        .bucket(BUCKET)
        .key("k")
        .upload_id(&id)
        .send()
        .await
        .unwrap();
    let lens: Vec<_> = listed
        .parts()
        .iter()
        .map(|part| (part.part_number.unwrap(), part.size.unwrap() as usize))
        .collect();
    assert_eq!(lens, [(1, PART_LEN), (2, PART_LEN + 12_345), (3, 77)]);
    let paged = client
        .list_parts()
        .bucket(BUCKET)
        .key("k")
        .upload_id(&id)
        .max_parts(2)
        .send()
        .await
        .unwrap();
    assert_eq!((paged.parts().len(), paged.is_truncated), (2, Some(true)));

    assert_eq!(
        refusal(client.get_object().bucket(BUCKET).key("k").send().await).0,
        404,
        "no object before completion"
    );
    parts.sort_by_key(|part| part.part_number);
    let complete = client
        .complete_multipart_upload()
        .bucket(BUCKET)
        .key("k")
        .upload_id(&id)
        .multipart_upload(chosen(parts));
    let etag = complete.send().await.unwrap().e_tag;
    let got = client.get_object().bucket(BUCKET).key("k").send().await.unwrap();
    assert_eq!(got.e_tag, etag);
    assert_eq!(got.content_type.as_deref(), Some("text/x-test"));
    assert_eq!(got.metadata.as_ref().unwrap()["m"], "1");
    let whole = bodies.concat();
    assert!(got.body.collect().await.unwrap().into_bytes() == whole);
    let range = client
        .get_object()
        .bucket(BUCKET)
        .key("k")
        .range(format!("bytes={}-{}", PART_LEN - 3, PART_LEN + 2));
    assert!(
        range.send().await.unwrap().body.collect().await.unwrap().into_bytes() == whole[PART_LEN - 3..PART_LEN + 3]
    );
    let gone = client.list_parts().bucket(BUCKET).key("k").upload_id(&id).send().await;
    assert_eq!(refusal(gone), (404, "NoSuchUpload".to_owned()));
}

pub(crate) async fn an_aborted_upload_leaves_nothing(target: &Target) {
    let client = &target.client;
    let id = create(client, "k").await;
    let part = send(client, "k", &id, 1, noise(1, 1000)).await;
    client
        .abort_multipart_upload()
        .bucket(BUCKET)
        .key("k")
        .upload_id(&id)
        .send()
        .await
        .unwrap();
    let complete = client
        .complete_multipart_upload()
        .bucket(BUCKET)
        .key("k")
        .upload_id(&id)
        .multipart_upload(chosen(vec![part]));
    assert_eq!(refusal(complete.send().await), (404, "NoSuchUpload".to_owned()));
    assert_eq!(refusal(client.get_object().bucket(BUCKET).key("k").send().await).0, 404);
    let late = client
        .upload_part()
        .bucket(BUCKET)
        .key("k")
        .upload_id(&id)
        .part_number(2)
        .body(ByteStream::from_static(b"x"));
    assert_eq!(refusal(late.send().await), (404, "NoSuchUpload".to_owned()));
}

pub(crate) async fn a_completion_must_name_what_was_uploaded(target: &Target) {
    let client = &target.client;
    let id = create(client, "k").await;
    let small = send(client, "k", &id, 1, noise(1, 1000)).await;
    let last = send(client, "k", &id, 2, noise(2, PART_LEN)).await;
    let wrong = CompletedPart::builder()
        .part_number(1)
        .e_tag("\"00000000000000000000000000000000\"")
        .build();
    let absent = CompletedPart::builder()
        .part_number(7)
        .e_tag(small.e_tag().unwrap())
        .build();
    let cases = [
        (vec![wrong], "InvalidPart"),
        (vec![absent], "InvalidPart"),
        (vec![last.clone(), small.clone()], "InvalidPartOrder"),
        (vec![small.clone(), last], "EntityTooSmall"),
    ];
    for (parts, code) in cases {
        let complete = client
            .complete_multipart_upload()
            .bucket(BUCKET)
            .key("k")
            .upload_id(&id)
            .multipart_upload(chosen(parts));
        assert_eq!(refusal(complete.send().await), (400, code.to_owned()));
    }
    // None of that spoiled it.
    let complete = client
        .complete_multipart_upload()
        .bucket(BUCKET)
        .key("k")
        .upload_id(&id)
        .multipart_upload(chosen(vec![small]));
    complete.send().await.unwrap();
    assert!(target.get("k").await == noise(1, 1000));
}

pub(crate) async fn a_part_can_be_sent_again(target: &Target) {
    let client = &target.client;
    let id = create(client, "k").await;
    send(client, "k", &id, 1, noise(1, 1000)).await;
    let again = send(client, "k", &id, 1, noise(2, 2000)).await;
    let complete = client
        .complete_multipart_upload()
        .bucket(BUCKET)
        .key("k")
        .upload_id(&id)
        .multipart_upload(chosen(vec![again]));
    complete.send().await.unwrap();
    assert!(target.get("k").await == noise(2, 2000));
}

pub(crate) async fn a_conditional_completion_does_not_replace(target: &Target) {
    let client = &target.client;
    let id = create(client, "k").await;
    let part = send(client, "k", &id, 1, noise(1, 1000)).await;
    target.put("k", "was here first").await;
    let complete = client
        .complete_multipart_upload()
        .bucket(BUCKET)
        .key("k")
        .upload_id(&id)
        .if_none_match("*");
    assert_eq!(
        refusal(complete.multipart_upload(chosen(vec![part])).send().await).0,
        412
    );
    assert_eq!(target.get("k").await, b"was here first");
}

//! A server with prepared answers stands for KMS, as its refusals are to be had from no other. `tests/tests/kms.rs`
//! has a whole platform use a real server.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::mpsc;
use std::thread;

use aws_sdk_kms::config::Credentials;
use serde_json::{Value, json};

use super::*;

const KEY: &str = "arn:aws:kms:eu-west-1:111122223333:key/1234";

/// Answers each request with the next of these, and then never again. What was asked can be received.
fn answering(answers: Vec<(u16, Value)>) -> (Kms, mpsc::Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (asked, questions) = mpsc::channel();
    thread::spawn(move || {
        let mut answers = answers.into_iter();
        let mut held = Vec::new();
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            let mut reader = BufReader::new(&stream);
            let (mut length, mut line) = (0, String::new());
            while reader.read_line(&mut line).unwrap() > 2 {
                if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                line.clear();
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let _ended = asked.send(serde_json::from_slice(&body).unwrap());
            let Some((status, answer)) = answers.next() else {
                held.push(stream);
                continue;
            };
            let answer = answer.to_string();
            write!(
                &stream,
                "HTTP/1.1 {status} x\r\ncontent-type: application/x-amz-json-1.1\r\nconnection: close\r\n\
                 content-length: {}\r\n\r\n{answer}",
                answer.len()
            )
            .unwrap();
        }
    });
    let mut config = KmsConfig::new(KEY.to_owned(), "blue".to_owned(), "eu-west-1".to_owned());
    config.limit = Duration::from_secs(4);
    let credentials = SharedCredentialsProvider::new(Credentials::new("id", "k7Fq2-hidden", None, None, "test"));
    let client = aws_sdk_kms::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("eu-west-1"))
        .endpoint_url(url)
        .credentials_provider(credentials.clone())
        .build();
    let kms = Kms {
        client: Client::from_conf(client),
        credentials: Some(credentials),
        config,
    };
    (kms, questions)
}

fn refusing(code: &str, message: &str) -> Kms {
    answering(vec![(400, json!({"__type": code, "message": message}))]).0
}

fn described(state: &str, spec: &str) -> (u16, Value) {
    let usage = "ENCRYPT_DECRYPT";
    let told = json!({"KeyId": "1234", "Arn": KEY, "KeyState": state, "KeyUsage": usage, "KeySpec": spec});
    (200, json!({"KeyMetadata": told}))
}

fn wrapped() -> WrappedKey {
    WrappedKey {
        by: KEY.to_owned(),
        cluster: "blue".to_owned(),
        bytes: vec![1, 2, 3],
    }
}

/// An error with its causes.
fn told<T>(answer: Result<T, KeyServiceError>) -> String {
    let Err(error) = answer else {
        panic!("not refused");
    };
    let (mut told, mut cause) = (error.to_string(), error.source());
    while let Some(error) = cause {
        told += &format!(": {error}");
        cause = error.source();
    }
    told
}

#[tokio::test]
async fn a_master_key_is_made_and_unwrapped_for_the_cluster_that_is_named() {
    // 32 bytes of 0x11.
    let plain = "ERERERERERERERERERERERERERERERERERERERERERE=";
    let (kms, asked) = answering(vec![
        described("Enabled", "SYMMETRIC_DEFAULT"),
        (200, json!({"KeyId": KEY, "Plaintext": plain, "CiphertextBlob": "AQID"})),
        (200, json!({"KeyId": KEY, "Plaintext": plain})),
        (200, json!({"KeyId": KEY, "CiphertextBlob": "BAUG"})),
    ]);
    assert_eq!(kms.key().await.unwrap(), KEY);
    let (made, by) = kms.generate().await.unwrap();
    assert_eq!(made.bytes(), &[0x11; 32]);
    assert_eq!(by, wrapped());
    assert_eq!(kms.unwrap(&by).await.unwrap().id(), made.id());
    assert_eq!(kms.wrap(&made).await.unwrap().bytes, [4, 5, 6]);
    let context = json!({"rekindle:cluster": "blue"});
    assert_eq!(asked.recv().unwrap(), json!({"KeyId": KEY}));
    for _ in 0..3 {
        let asked = asked.recv().unwrap();
        assert_eq!((&asked["KeyId"], &asked["EncryptionContext"]), (&json!(KEY), &context));
    }
    assert!(!format!("{kms:?} {by:?}").contains("k7Fq2"));
}

#[tokio::test]
async fn a_key_that_cannot_be_used_is_named_with_its_fix() {
    for (state, spec, fix) in [
        ("Disabled", "SYMMETRIC_DEFAULT", "enable-key"),
        ("PendingDeletion", "SYMMETRIC_DEFAULT", "cancel-key-deletion"),
        ("PendingImport", "SYMMETRIC_DEFAULT", "PendingImport"),
        ("Enabled", "RSA_2048", "symmetric"),
    ] {
        let told = told(answering(vec![described(state, spec)]).0.key().await);
        assert!(told.contains(fix) && told.contains(KEY), "{state}: {told}");
    }
}

#[tokio::test]
async fn what_kms_refuses_names_its_fix() {
    for (code, message, fix) in [
        ("DisabledException", "it is disabled", "enable-key"),
        (
            "KMSInvalidStateException",
            "it is pending deletion.",
            "cancel-key-deletion",
        ),
        ("KMSInvalidStateException", "it is unavailable", "describe-key"),
        (
            "NotFoundException",
            "Key does not exist",
            "in eu-west-1: check its name and AWS_REGION",
        ),
        (
            "AccessDeniedException",
            "User: me is not authorized",
            "allow this machine's role kms:Decrypt on it, with rekindle:cluster=blue in the encryption context",
        ),
        ("InvalidCiphertextException", "", "for the cluster blue"),
        ("IncorrectKeyException", "", "for the cluster blue"),
        (
            "UnrecognizedClientException",
            "no such token",
            "set ones that are valid",
        ),
        ("SomethingNew", "said so", "SomethingNew: said so"),
    ] {
        let told = told(refusing(code, message).unwrap(&wrapped()).await);
        assert!(told.contains(fix), "{code}: {told}");
    }
}

#[tokio::test]
async fn kms_is_asked_again_when_it_is_busy_and_no_longer_than_the_limit() {
    let busy = (400, json!({"__type": "ThrottlingException", "message": "slower"}));
    let (kms, _asked) = answering(vec![busy, described("Enabled", "SYMMETRIC_DEFAULT")]);
    assert_eq!(kms.key().await.unwrap(), KEY);
    let (kms, _asked) = answering(Vec::new());
    let told = told(kms.key().await);
    assert!(
        told.contains("does not answer DescribeKey in eu-west-1 within 4s"),
        "{told}"
    );
    let told = self::told(answering(vec![(200, json!({}))]).0.unwrap(&wrapped()).await);
    assert!(told.contains("AWS_ENDPOINT_URL_KMS"), "{told}");
    let proxy = answering(vec![(403, json!("no"))]).0;
    let told = self::told(proxy.unwrap(&wrapped()).await);
    assert!(told.contains("kms:Decrypt") && told.contains("403"), "{told}");
}

#[test]
fn the_copies_of_a_multi_region_key_are_one_and_an_arn_says_its_region() {
    let (kms, _asked) = answering(Vec::new());
    let arn = |region: &str, id: &str| format!("arn:aws:kms:{region}:111122223333:key/{id}");
    assert!(kms.same(&arn("eu-west-1", "mrk-1"), &arn("us-east-1", "mrk-1")));
    assert!(!kms.same(&arn("eu-west-1", "mrk-1"), &arn("us-east-1", "mrk-2")));
    assert!(!kms.same(&arn("eu-west-1", "1"), &arn("us-east-1", "1")));
    assert_eq!(region_of(KEY), Some("eu-west-1"));
    assert_eq!(region_of("alias/rekindle"), None);
}

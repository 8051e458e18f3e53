//! A server that answers by a script, with responses that no real server gives on request: throttling, expired
//! credentials, a missing bucket. Also shows which requests ask for encryption.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use rekindle_s3_servers::config;
use rekindle_store_s3::{Encryption, StoreConfig, connect};

/// Start of the header line that requests encryption.
const ENCRYPTION: &str = "x-amz-server-side-encryption: ";

/// Headers of the requests received.
type Heads = Arc<Mutex<Vec<String>>>;

/// Answers the first requests by `script` (status, error code), and all others with success.
async fn scripted(script: &[(u16, &'static str)]) -> (StoreConfig, Heads) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = config(listener.local_addr().unwrap());
    let heads = Heads::default();
    let (log, script) = (heads.clone(), script.to_vec());
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let (log, script) = (log.clone(), script.clone());
            tokio::spawn(async move {
                while let Some(head) = request(&mut socket).await {
                    let completes = head.starts_with("post") && head.contains("uploadid=");
                    // Like real servers, it echoes the requested encryption, in the spelling of the known values.
                    let encrypts = ["AES256", "aws:kms"].into_iter().find_map(|value| {
                        let asked = format!("{ENCRYPTION}{}\r\n", value.to_lowercase());
                        head.contains(&asked).then(|| format!("{ENCRYPTION}{value}\r\n"))
                    });
                    let encrypts = encrypts.unwrap_or_default();
                    let at = {
                        let mut log = log.lock();
                        log.push(head);
                        log.len() - 1
                    };
                    let answer = match script.get(at) {
                        Some((status, code)) => {
                            let body = format!("<Error><Code>{code}</Code><Message>as scripted</Message></Error>");
                            format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n\r\n{body}", body.len())
                        }
                        None => {
                            let body = match completes {
                                true => "<CompleteMultipartUploadResult/>",
                                false => {
                                    "<InitiateMultipartUploadResult><UploadId>u</UploadId>\
                                     </InitiateMultipartUploadResult>"
                                }
                            };
                            format!(
                                "HTTP/1.1 200 OK\r\netag: \"e\"\r\n{encrypts}content-length: {}\r\n\r\n{body}",
                                body.len()
                            )
                        }
                    };
                    if socket.write_all(answer.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (config, heads)
}

/// Reads a request and returns its head. `None` at the end of the connection.
async fn request(socket: &mut tokio::net::TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(socket.read_u8().await.ok()?);
    }
    let head = String::from_utf8_lossy(&head).to_lowercase();
    let length = head
        .lines()
        .find_map(|l| l.strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    socket.read_exact(&mut body).await.ok()?;
    Some(head)
}

#[tokio::test]
async fn a_throttled_request_is_tried_again_and_not_for_ever() {
    let slow = (503, "SlowDown");
    let (config, heads) = scripted(&[slow, slow]).await;
    let store = connect(config).await;
    store.put("a", Bytes::from_static(b"x")).await.unwrap();
    assert_eq!(heads.lock().len(), 3);

    let (config, heads) = scripted(&[slow; 100]).await;
    let attempts = config.timeouts.attempts as usize;
    let store = connect(config).await;
    let error = store.put("a", Bytes::from_static(b"x")).await.unwrap_err();
    assert!(format!("{:?}", error).contains("SlowDown"), "{error:?}");
    assert_eq!(heads.lock().len(), attempts);
}

#[tokio::test]
async fn credentials_that_have_run_out_and_a_bucket_that_is_gone_are_told_at_once() {
    for (status, code) in [(400, "ExpiredToken"), (403, "AccessDenied"), (404, "NoSuchBucket")] {
        let (config, heads) = scripted(&[(status, code); 100]).await;
        let store = connect(config).await;
        let error = store.put_if_absent("a", Bytes::from_static(b"x")).await.unwrap_err();
        assert!(format!("{:?}", error).contains(code), "{error:?}");
        assert!(!error.is_not_found(), "{code} is not the object's absence");
        assert_eq!(heads.lock().len(), 1, "{code}: trying again would not help");
    }
}

#[tokio::test]
async fn what_is_written_asks_for_the_encryption_that_is_configured_and_has_the_prefix() {
    let (config, heads) = scripted(&[]).await;
    for (encryption, expected) in [
        (Encryption::AsBucket, None),
        (Encryption::Aes256, Some("aes256")),
        (Encryption::Kms(Some("key-7".into())), Some("aws:kms")),
    ] {
        heads.lock().clear();
        let config = StoreConfig {
            encryption: encryption.clone(),
            ..config.clone()
        };
        let store = connect(config).await;
        store.put("a", Bytes::from_static(b"x")).await.unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(17 << 20).unwrap();
        store.put_file("b", file.path()).await.unwrap();
        let heads = heads.lock().clone();
        for begins in ["put /rekindle-test/team/a", "post /rekindle-test/team/b?uploads"] {
            let head = heads.iter().find(|h| h.starts_with(begins)).unwrap();
            let said = head.lines().find_map(|l| l.strip_prefix(ENCRYPTION));
            assert_eq!(said, expected, "{begins}");
            let key = head.contains("x-amz-server-side-encryption-aws-kms-key-id: key-7");
            assert_eq!(key, matches!(encryption, Encryption::Kms(_)), "{begins}");
        }
    }
}

use futures::StreamExt as _;

use super::*;

fn intake(memory: u64, grace: Duration) -> Intake {
    Intake {
        rate: MinRate {
            bytes_per_s: 1 << 10,
            grace,
        },
        memory: Budget::new(memory),
        early: Arc::new(Semaphore::new(1)),
        metrics: Arc::new(Metrics::new()),
    }
}

fn chunks(chunks: Vec<Vec<u8>>) -> Body {
    Body::from_stream(futures::stream::iter(chunks.into_iter().map(Ok::<_, std::io::Error>)))
}

async fn received(intake: &Intake, body: Body, max: u64) -> Result<Upload, ErrorCode> {
    let (headers, sender) = (HeaderMap::new(), Sender::default());
    intake.receive(&headers, body, max, &sender).await.map_err(|e| e.code)
}

async fn passed_on(upload: &Upload) -> Vec<u8> {
    upload.attempt().collect().await.unwrap().to_bytes().to_vec()
}

#[tokio::test]
async fn a_call_is_passed_on_before_its_first_message_and_may_be_silent_in_its_place() {
    let intake = intake(1 << 20, Duration::from_millis(50));
    let sender = Sender {
        is_call: true,
        ..Sender::default()
    };
    let (messages, coming) = tokio::sync::mpsc::channel::<Result<_, std::io::Error>>(4);
    let body = Body::from_stream(tokio_stream::wrappers::ReceiverStream::new(coming));
    let call = intake.receive(&HeaderMap::new(), body, 1 << 20, &sender).await.unwrap();
    let mut passed = call.attempt();
    for said in ["one", "two"] {
        // Longer than a body without a minimum rate's worth of bytes may be waited for.
        let silent = tokio::time::timeout(Duration::from_millis(200), passed.frame()).await;
        assert!(silent.is_err(), "{silent:?}");
        messages.send(Ok(Bytes::from(said))).await.unwrap();
        assert_eq!(passed.frame().await.unwrap().unwrap().into_data().unwrap(), said);
    }
    // The only place is taken, and a body that is whole needs none.
    let endless = Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
    let refused = intake.receive(&HeaderMap::new(), endless, 1 << 20, &sender).await;
    assert_eq!(refused.err().map(|e| e.code), Some(ErrorCode::Unavailable));
    let none = HeaderMap::new();
    let whole = intake.receive(&none, Body::from("message"), 1 << 20, &sender).await;
    assert!(matches!(whole.unwrap(), Upload::Kept(_)));
}

#[tokio::test]
async fn trailers_are_kept_with_a_body_but_for_the_platform_s() {
    let mut trailers = HeaderMap::new();
    trailers.insert("x-checksum", "7".parse().unwrap());
    trailers.insert("x-fn-instance", "i-1".parse().unwrap());
    let body = Full::new(Bytes::from("all")).with_trailers(std::future::ready(Some(Ok(trailers))));
    let upload = received(&intake(1 << 20, Duration::from_secs(9)), Body::new(body), 1 << 20).await;
    let upload = upload.unwrap();
    assert!(upload.can_be_sent_again());
    let passed = upload.attempt().collect().await.unwrap();
    let names = passed.trailers().unwrap().keys();
    assert_eq!(names.map(|name| name.as_str()).collect::<Vec<_>>(), ["x-checksum"]);
    assert_eq!(passed.to_bytes(), "all");
}

#[tokio::test]
async fn what_may_be_sent_before_it_is_read_counts_until_the_body_ends() {
    // Twelve windows, the beginning of another body, and what is for small ones.
    let intake = intake(16 * (64 << 10), Duration::from_secs(20));
    let sender = Sender {
        window: 64 << 10,
        ..Sender::default()
    };
    let none = HeaderMap::new();
    let large = || chunks(vec![vec![0; 70_000]; 2]);
    let mut uploads = Vec::new();
    for _ in 0..12 {
        let upload = intake.receive(&none, large(), 1 << 20, &sender).await.unwrap();
        // What was received is passed on. What the connection may hold is not known to be gone.
        upload.attempt().frame().await.unwrap().unwrap();
        uploads.push(upload);
    }
    assert!(intake.memory.used() >= 12 * (64 << 10));
    let refused = intake.receive(&none, large(), 1 << 20, &sender).await;
    assert_eq!(refused.err().unwrap().code, ErrorCode::Unavailable);
    let mut small = HeaderMap::new();
    small.insert(http::header::CONTENT_LENGTH, http::HeaderValue::from_static("100"));
    let small = intake.receive(&small, chunks(vec![vec![0; 100]]), 1 << 20, &sender);
    assert!(small.await.is_ok(), "a body is no larger than it says");
    drop(uploads);
    assert_eq!(intake.memory.used(), 0);
}

#[tokio::test]
async fn a_small_body_is_kept_whole_however_it_comes_and_a_large_one_passes_byte_for_byte() {
    let intake = intake(1 << 20, Duration::from_secs(20));
    for pieces in [vec![], vec![vec![1; 10]], (0..100).map(|n| vec![n; 600]).collect()] {
        let whole: Vec<u8> = pieces.concat();
        let upload = received(&intake, chunks(pieces), 1 << 20).await.unwrap();
        assert!(upload.can_be_sent_again() && !upload.is_of_unknown_length());
        assert_eq!(
            (passed_on(&upload).await, passed_on(&upload).await),
            (whole.clone(), whole)
        );
    }
    let pieces: Vec<Vec<u8>> = (0..200).map(|n| vec![n; 1_000]).collect();
    let upload = received(&intake, chunks(pieces.clone()), 1 << 20).await.unwrap();
    assert!(upload.can_be_sent_again() && upload.is_of_unknown_length());
    assert_eq!(passed_on(&upload).await, pieces.concat());
    assert!(!upload.can_be_sent_again());
    drop(upload);
    assert_eq!(intake.memory.used(), 0);
}

#[tokio::test]
async fn what_is_over_the_limit_is_refused_by_its_first_part_or_as_it_passes() {
    let intake = intake(1 << 20, Duration::from_secs(20));
    let refused = received(&intake, chunks(vec![vec![0; 50]]), 49).await.err();
    assert_eq!(refused, Some(ErrorCode::TooLarge));
    let upload = received(&intake, chunks(vec![vec![0; 70_000]; 2]), 100_000)
        .await
        .unwrap();
    assert!(upload.attempt().collect().await.is_err());
    assert_eq!(upload.check(100_000).unwrap_err().code, ErrorCode::TooLarge);
    assert!(
        intake
            .whole(chunks(vec![vec![0; 50]; 2]), 99, None)
            .await
            .unwrap()
            .is_none()
    );
    assert!(
        intake
            .whole(chunks(vec![vec![0; 50]; 2]), 100, None)
            .await
            .unwrap()
            .is_some()
    );
}

#[tokio::test]
async fn a_body_that_stops_coming_is_refused_before_and_after_its_first_part() {
    let intake = intake(1 << 20, Duration::from_millis(50));
    let stops = |first: usize| {
        let first = futures::stream::iter([Ok::<_, std::io::Error>(vec![0; first])]);
        Body::from_stream(first.chain(futures::stream::pending()))
    };
    let refused = received(&intake, stops(10), 1 << 20).await.err();
    assert_eq!(
        refused,
        Some(ErrorCode::RequestTimeout),
        "it is given up before it counts as a pause"
    );
    let upload = received(&intake, stops(KEPT_MAX), 1 << 20).await.unwrap();
    assert!(upload.attempt().collect().await.is_err());
    assert!(upload.broke_off());
    assert_eq!(upload.check(1 << 20).unwrap_err().code, ErrorCode::RequestTimeout);
}

#[tokio::test]
async fn a_body_that_comes_slowly_behind_its_first_part_is_one_of_few() {
    let intake = intake(1 << 20, Duration::from_secs(20));
    // 64 KiB at once, then 2 KiB a second.
    let slow = || {
        let pieces = futures::stream::unfold(0, |piece| async move {
            if piece > 0 {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            let bytes = if piece > 0 { 200 } else { KEPT_MAX };
            (piece < 30).then(|| (Ok::<_, std::io::Error>(vec![1; bytes]), piece + 1))
        });
        Body::from_stream(pieces)
    };
    let first = received(&intake, slow(), 1 << 20).await.unwrap();
    let second = received(&intake, slow(), 1 << 20).await.unwrap();
    let (one, other) = tokio::join!(first.attempt().collect(), second.attempt().collect());
    let whole = [one, other].into_iter().filter(Result::is_ok).count();
    assert_eq!(whole, 1, "there is one place");
    // Whichever of the two was slow first has it.
    let refused: Vec<ErrorCode> = [first.check(1 << 20), second.check(1 << 20)]
        .into_iter()
        .filter_map(|checked| checked.err().map(|e| e.code))
        .collect();
    assert_eq!(refused, [ErrorCode::RequestTimeout]);
}

#[tokio::test]
async fn a_body_that_comes_a_byte_at_a_time_is_refused_though_it_never_stops() {
    let intake = intake(1 << 20, Duration::from_millis(200));
    let trickle = futures::stream::unfold((), |()| async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        Some((Ok::<_, std::io::Error>(vec![0; 1]), ()))
    });
    let refused = received(&intake, Body::from_stream(trickle), 1 << 20).await.err();
    assert_eq!(refused, Some(ErrorCode::RequestTimeout));
}

#[tokio::test]
async fn a_body_without_a_length_may_pause_while_few_do_and_one_with_a_length_may_not() {
    let intake = intake(1 << 20, Duration::from_millis(1_000));
    let pauses = || {
        let first = futures::stream::iter([Ok::<_, std::io::Error>(vec![1; 3])]);
        Body::from_stream(first.chain(futures::stream::pending()))
    };
    let early = received(&intake, pauses(), 1 << 20).await.unwrap();
    let first = early.attempt().frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(first, vec![1; 3]);
    let another = received(&intake, pauses(), 1 << 20).await.err();
    assert_eq!(another, Some(ErrorCode::RequestTimeout));
    drop(early);
    let length: HeaderMap = [(http::header::CONTENT_LENGTH, 9.into())].into_iter().collect();
    let known = intake
        .receive(&length, pauses(), 1 << 20, &Sender::default())
        .await
        .err();
    assert_eq!(known.map(|e| e.code), Some(ErrorCode::RequestTimeout));
    assert!(received(&intake, pauses(), 1 << 20).await.is_ok());
}

#[tokio::test]
async fn bodies_of_many_are_never_more_than_there_is_memory_for() {
    let intake = intake(1 << 20, Duration::from_secs(20));
    let mut held = Vec::new();
    let mut refused = 0;
    for _ in 0..100 {
        match received(&intake, chunks(vec![vec![7; 3_000]; 20]), 1 << 20).await {
            Ok(upload) => held.push(upload),
            Err(code) => {
                assert_eq!(code, ErrorCode::Unavailable);
                refused += 1;
            }
        }
        assert!(intake.memory.used() <= 1 << 20);
    }
    assert_eq!((held.len(), refused), (16, 84));
    drop(held);
    assert!(
        received(&intake, chunks(vec![vec![7; 3_000]; 20]), 1 << 20)
            .await
            .is_ok()
    );
}

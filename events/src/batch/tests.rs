use std::collections::VecDeque;

use serde_json::{Value, json};

use super::settle::pause_after;
use super::*;
use crate::queue::{DeadLetter, ReceiveRequest};
use crate::testing::{message, source};

/// Notes what it is told.
#[derive(Default)]
struct RecordingTarget {
    said: Mutex<Vec<String>>,
    buries: bool,
    /// How long it takes to give a message back.
    slow: Duration,
    /// How long it takes to hold messages again.
    slow_to_extend: Duration,
}

impl RecordingTarget {
    fn say(&self, what: String) -> Result<(), QueueError> {
        self.said.lock().push(what);
        Ok(())
    }
}

#[async_trait]
impl Queue for RecordingTarget {
    fn extend_every(&self) -> Duration {
        Duration::from_secs(10)
    }

    async fn receive(&self, _: ReceiveRequest, _: &CancellationToken) -> Result<Vec<Message>, QueueError> {
        Ok(Vec::new())
    }

    async fn extend(&self, receipts: &[String]) -> Result<(), QueueError> {
        tokio::time::sleep(self.slow_to_extend).await;
        self.say(format!("extend {}", receipts.len()))
    }

    async fn remove(&self, receipts: &[String]) -> Result<(), QueueError> {
        self.say(format!("remove {}", receipts.join(" ")))
    }

    async fn give_back(&self, receipt: &str, after: Duration) -> Result<(), QueueError> {
        tokio::time::sleep(self.slow).await;
        self.say(format!("back {receipt} {}", after.as_secs()))
    }

    async fn bury(&self, message: &Message, letter: &DeadLetter<'_>) -> Result<(), QueueError> {
        match self.buries {
            true => self.say(format!("bury {} {} {}", message.id, letter.to, letter.reason)),
            false => Err(QueueError::new("no such subject", "no responders")),
        }
    }

    async fn lag(&self) -> Result<u64, QueueError> {
        Ok(0)
    }
}

/// Gives these verdicts, one after the other, each after a while.
struct Script {
    verdicts: Mutex<VecDeque<Verdict>>,
    takes: Duration,
    /// Whether the first attempts to tell destinations are refused, and for good.
    refusals: Mutex<VecDeque<bool>>,
    told: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Script {
    fn of(verdicts: impl IntoIterator<Item = Verdict>, takes: u64) -> Self {
        Self {
            verdicts: Mutex::new(verdicts.into_iter().collect()),
            takes: Duration::from_secs(takes),
            refusals: Mutex::default(),
            told: Arc::default(),
        }
    }
}

#[async_trait]
impl Target for Script {
    async fn invoke(&self, invocation: Invocation<'_>) -> Verdict {
        assert!(invocation.headers.contains_key("traceparent") || !invocation.body.is_empty());
        tokio::time::sleep(self.takes).await;
        self.verdicts.lock().pop_front().unwrap()
    }

    async fn tell(&self, notice: Notice<'_>) -> Result<(), TellError> {
        if let Some(is_final) = self.refusals.lock().pop_front() {
            let reason = "it is not there".to_owned();
            return Err(TellError { reason, is_final });
        }
        let event: Value = serde_json::from_slice(&notice.body).unwrap();
        assert_eq!(event["id"], notice.key);
        self.told.lock().push((notice.function.to_string(), event));
        Ok(())
    }
}

fn batches(batch: u32, takes: u64, verdicts: impl IntoIterator<Item = Verdict>) -> Batches {
    Batches {
        info: SourceInfo {
            function: "hello".parse().unwrap(),
            version: rekindle_wire::VersionNumber(1),
            source: source(batch),
            timeout_ms: 1_000,
            boot_timeout_ms: 30_000,
            readers: Vec::new(),
        },
        target: Arc::new(Script::of(verdicts, takes)),
        metrics: Arc::new(Metrics::new()),
        progress: Arc::default(),
        pace: Arc::new(Mutex::new(Pace::new(batch, 4))),
        places: Arc::new(Semaphore::new(1)),
        stop: CancellationToken::new(),
        cut: CancellationToken::new(),
    }
}

fn failed(reason: &str) -> Verdict {
    Verdict::Failed {
        reason: reason.to_owned(),
        after: None,
        is_overloaded: false,
    }
}

fn busy(after: u64) -> Verdict {
    Verdict::Refused {
        reason: "429: throttled".to_owned(),
        after: Some(Duration::from_secs(after)),
        is_busy: true,
    }
}

fn three() -> Vec<Message> {
    let mut all: Vec<Message> = ["a", "b", "c"].into_iter().map(|id| message(id, b"1")).collect();
    all[2].deliveries = 2;
    all
}

#[tokio::test(start_paused = true)]
async fn what_failed_comes_again_or_is_a_dead_letter_and_the_rest_is_removed() {
    let queue = RecordingTarget {
        buries: true,
        ..RecordingTarget::default()
    };
    let some = Verdict::SomeFailed(vec!["b".to_owned(), "c".to_owned()]);
    let batches = batches(10, 0, [some]);
    batches.process(&queue, three()).await;
    assert_eq!(
        *queue.said.lock(),
        [
            "remove receipt-a",
            "back receipt-b 1",
            "bury c dead the function's batchItemFailures names it",
            "remove receipt-c",
        ]
    );
    let progress = batches.progress.read();
    assert_eq!((progress.succeeded, progress.failed, progress.dead), (1, 2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_that_cannot_be_put_anywhere_stays_in_the_queue() {
    let queue = RecordingTarget::default();
    let batches = batches(10, 0, [failed("500: it threw")]);
    batches.process(&queue, three()).await;
    assert_eq!(
        *queue.said.lock(),
        ["back receipt-a 1", "back receipt-b 1", "back receipt-c 2"]
    );
    let progress = batches.progress.read();
    assert_eq!((progress.succeeded, progress.failed, progress.dead), (0, 3, 0));
    assert!(progress.problem.unwrap().contains("no such subject: no responders"));
}

#[tokio::test(start_paused = true)]
async fn a_refused_batch_is_held_and_tried_again_without_counting() {
    let queue = RecordingTarget::default();
    let batches = batches(1, 0, [busy(25), busy(1), Verdict::Succeeded]);
    let began = tokio::time::Instant::now();
    batches.process(&queue, vec![message("a", b"1")]).await;
    assert!(began.elapsed() >= Duration::from_secs(26), "{:?}", began.elapsed());
    let said = queue.said.lock().clone();
    assert_eq!(said.last().unwrap(), "remove receipt-a");
    assert!(
        said[..said.len() - 1].iter().all(|said| said == "extend 1") && said.len() >= 3,
        "{said:?}"
    );
    assert_eq!(batches.progress.read().state, SourceState::Reading);
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_refused_for_long_is_given_back_and_is_no_dead_letter() {
    let queue = RecordingTarget {
        buries: true,
        ..RecordingTarget::default()
    };
    let batches = batches(1, 0, (0..100).map(|_| busy(60)));
    let mut only = message("a", b"1");
    only.deliveries = 9;
    batches.process(&queue, vec![only]).await;
    assert_eq!(queue.said.lock().last().unwrap(), "back receipt-a 0");
    assert_eq!(batches.progress.read().state, SourceState::Throttled);
}

#[tokio::test(start_paused = true)]
async fn a_long_invocation_holds_its_messages_and_is_given_back_when_it_is_cut() {
    let queue = RecordingTarget::default();
    let batches = batches(10, 35, [Verdict::Succeeded, Verdict::Succeeded]);
    batches.process(&queue, three()).await;
    assert_eq!(
        *queue.said.lock(),
        [
            "extend 3",
            "extend 3",
            "extend 3",
            "remove receipt-a receipt-b receipt-c"
        ]
    );
    queue.said.lock().clear();
    let cutting = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        batches.cut.cancel();
    };
    tokio::join!(batches.process(&queue, vec![message("a", b"1")]), cutting);
    assert_eq!(*queue.said.lock(), ["back receipt-a 0"]);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_settled_is_held_while_the_rest_is() {
    let queue = RecordingTarget {
        slow: Duration::from_secs(8),
        ..RecordingTarget::default()
    };
    let batches = batches(10, 0, [failed("500: it threw")]);
    batches.process(&queue, three()).await;
    assert_eq!(
        *queue.said.lock(),
        ["back receipt-a 1", "back receipt-b 1", "extend 1", "back receipt-c 2"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_message_is_given_back_once_the_queue_has_answered_how_long_it_holds_it() {
    let queue = RecordingTarget {
        slow_to_extend: Duration::from_secs(5),
        ..RecordingTarget::default()
    };
    // The function fails while its message is being held again.
    let batches = batches(1, 12, [failed("500: it threw")]);
    batches.process(&queue, vec![message("a", b"1")]).await;
    assert_eq!(*queue.said.lock(), ["extend 1", "back receipt-a 1"]);
}

fn too_large() -> Verdict {
    Verdict::TooLarge {
        reason: "413: too_large: send less".to_owned(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_too_large_is_halved_until_only_what_is_too_large_alone_fails() {
    let queue = RecordingTarget {
        buries: true,
        ..RecordingTarget::default()
    };
    let verdicts = [
        too_large(),
        Verdict::Succeeded,
        too_large(),
        Verdict::Succeeded,
        too_large(),
    ];
    let batches = batches(10, 0, verdicts);
    batches.process(&queue, three()).await;
    assert_eq!(
        *queue.said.lock(),
        [
            "remove receipt-a",
            "remove receipt-b",
            "bury c dead 413: too_large: send less",
            "remove receipt-c"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn the_parts_that_follow_one_that_is_given_back_are_too() {
    let queue = RecordingTarget::default();
    let batches = batches(10, 0, [too_large()]);
    let cutting = Script::of([too_large()], 0);
    let batches = Batches {
        target: Arc::new(Cutting(cutting, batches.cut.clone())),
        ..batches
    };
    batches.process(&queue, three()).await;
    let said = queue.said.lock().clone();
    assert_eq!(said, ["back receipt-a 0", "back receipt-b 0", "back receipt-c 0"]);
}

/// Gives one verdict, and never another, as the program is stopped.
struct Cutting(Script, CancellationToken);

#[async_trait]
impl Target for Cutting {
    async fn invoke(&self, invocation: Invocation<'_>) -> Verdict {
        if self.1.is_cancelled() {
            return std::future::pending().await;
        }
        self.1.cancel();
        self.0.invoke(invocation).await
    }

    async fn tell(&self, notice: Notice<'_>) -> Result<(), TellError> {
        self.0.tell(notice).await
    }
}

/// A batch of three whose last one has used up its deliveries, with destinations.
fn with_destinations(script: Script, dead_letter: Option<&str>) -> Batches {
    let mut batches = batches(10, 0, []);
    batches.info.function = "hello.team".parse().unwrap();
    let source = &mut batches.info.source;
    source.on_success = Some("ledger".parse().unwrap());
    source.on_failure = Some("alerts".parse().unwrap());
    source.dead_letter = dead_letter.map(str::to_owned);
    batches.target = Arc::new(script);
    batches
}

#[tokio::test(start_paused = true)]
async fn destinations_are_told_of_what_is_removed_and_of_nothing_else() {
    let queue = RecordingTarget::default();
    let script = Script::of([Verdict::SomeFailed(vec!["b".to_owned(), "c".to_owned()])], 0);
    // A destination that cannot be told at first is told later.
    script.refusals.lock().push_back(false);
    let told = Arc::clone(&script.told);
    with_destinations(script, None).process(&queue, three()).await;
    assert_eq!(
        *queue.said.lock(),
        ["remove receipt-a", "back receipt-b 1", "remove receipt-c"]
    );
    let told = told.lock().clone();
    let of = |n: usize| (told[n].0.as_str(), &told[n].1);
    let (to, event) = of(0);
    assert_eq!(
        (to, &event["type"]),
        ("ledger.team", &json!("rekindle.source.succeeded"))
    );
    assert_eq!(event["id"], "succeeded/hello.team/orders/a");
    assert_eq!(event["data"]["request"]["data"], 1);
    let (to, event) = of(1);
    assert_eq!((to, &event["type"]), ("alerts.team", &json!("rekindle.source.failed")));
    let message = &event["data"]["error"]["message"];
    assert_eq!(message, "the function's batchItemFailures names it");
    assert_eq!((told.len(), &event["data"]["deliveries"]), (2, &json!(2)));
}

#[tokio::test(start_paused = true)]
async fn a_failure_of_which_nobody_can_be_told_stays_in_the_queue_or_is_a_dead_letter() {
    for (dead_letter, said) in [
        (None, vec!["remove receipt-a receipt-b", "back receipt-c 2"]),
        (
            Some("dead"),
            vec![
                "remove receipt-a receipt-b",
                "bury c dead the function's batchItemFailures names it",
                "remove receipt-c",
            ],
        ),
    ] {
        let queue = RecordingTarget {
            buries: true,
            ..RecordingTarget::default()
        };
        let script = Script::of([Verdict::SomeFailed(vec!["c".to_owned()])], 0);
        script.refusals.lock().extend([true; 3]);
        with_destinations(script, dead_letter).process(&queue, three()).await;
        assert_eq!(*queue.said.lock(), said);
    }
}

#[tokio::test(start_paused = true)]
async fn what_could_not_be_told_before_a_stop_comes_again() {
    let queue = RecordingTarget::default();
    let script = Script::of([Verdict::Succeeded], 0);
    script.refusals.lock().extend([false; 99]);
    let batches = with_destinations(script, None);
    let cutting = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        batches.cut.cancel();
    };
    tokio::join!(batches.process(&queue, vec![message("a", b"1")]), cutting);
    assert_eq!(*queue.said.lock(), ["back receipt-a 0"]);
}

#[tokio::test(start_paused = true)]
async fn a_batch_of_which_nobody_can_be_told_is_held_for_a_minute_and_no_longer() {
    let queue = RecordingTarget::default();
    let script = Script::of([Verdict::SomeFailed((0..100).map(|n| n.to_string()).collect())], 0);
    script.refusals.lock().extend([false; 9_999]);
    let used_up = |n: usize| Message {
        deliveries: u32::MAX,
        ..message(&n.to_string(), b"1")
    };
    let began = tokio::time::Instant::now();
    let all = (0..100).map(used_up).collect();
    with_destinations(script, None).process(&queue, all).await;
    let took = began.elapsed();
    assert!((30..=70).contains(&took.as_secs()), "{took:?}");
    let given_back = queue.said.lock().iter().filter(|said| said.starts_with("back")).count();
    assert_eq!(given_back, 100);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_too_long_to_be_told_is_left_out() {
    let script = Script::of([Verdict::Succeeded], 0);
    let told = Arc::clone(&script.told);
    let long = Message {
        body: vec![b'x'; 2 << 20].into(),
        id: "é".repeat(300),
        ..message("a", b"")
    };
    with_destinations(script, None)
        .process(&RecordingTarget::default(), vec![long])
        .await;
    let (_, event) = told.lock().pop().unwrap();
    assert_eq!(event["data"], json!({"deliveries": 1, "request_left_out": true}));
}

#[tokio::test(start_paused = true)]
async fn messages_whose_names_differ_anywhere_are_told_of_by_different_keys() {
    let script = Script::of([Verdict::Succeeded], 0);
    let told = Arc::clone(&script.told);
    let long = "x".repeat(300);
    let ids = [
        "a".to_owned(),
        "é".to_owned(),
        "ü".to_owned(),
        format!("a{long}"),
        format!("b{long}"),
    ];
    let all = ids.iter().map(|id| message(id, b"1")).collect();
    with_destinations(script, None)
        .process(&RecordingTarget::default(), all)
        .await;
    let keys: HashSet<String> = told.lock().iter().map(|(_, event)| event["id"].to_string()).collect();
    assert_eq!(keys.len(), ids.len(), "{keys:?}");
    assert!(keys.iter().all(|key| key.is_ascii() && key.len() <= 202), "{keys:?}");
}

#[test]
fn pauses_grow_to_five_minutes() {
    let all: Vec<u64> = [1, 2, 3, 9, 10, 70].map(|n| pause_after(n).as_secs()).into();
    assert_eq!(all, [1, 2, 4, 256, 300, 300]);
}

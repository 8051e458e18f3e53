use std::collections::VecDeque;

use super::settle::pause_after;
use super::*;
use crate::queue::{DeadLetter, Wanted};
use crate::testing::{message, source};

/// Notes what it is told.
#[derive(Default)]
struct Noted {
    said: Mutex<Vec<String>>,
    buries: bool,
    /// How long it takes to give a message back.
    slow: Duration,
}

impl Noted {
    fn say(&self, what: String) -> Result<(), QueueError> {
        self.said.lock().push(what);
        Ok(())
    }
}

#[async_trait]
impl Queue for Noted {
    fn extend_every(&self) -> Duration {
        Duration::from_secs(10)
    }

    async fn receive(&self, _: Wanted, _: &CancellationToken) -> Result<Vec<Message>, QueueError> {
        Ok(Vec::new())
    }

    async fn extend(&self, receipts: &[String]) -> Result<(), QueueError> {
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
}

#[async_trait]
impl Target for Script {
    async fn invoke(&self, invocation: Invocation<'_>) -> Verdict {
        assert!(invocation.headers.contains_key("traceparent") || !invocation.body.is_empty());
        tokio::time::sleep(self.takes).await;
        self.verdicts.lock().pop_front().unwrap()
    }
}

fn batches(batch: u32, takes: u64, verdicts: impl IntoIterator<Item = Verdict>) -> Batches {
    Batches {
        info: SourceInfo {
            function: "hello".parse().unwrap(),
            version: rekindle_wire::VersionNumber(1),
            source: source(batch),
            timeout_ms: 1_000,
            readers: Vec::new(),
        },
        target: Arc::new(Script {
            verdicts: Mutex::new(verdicts.into_iter().collect()),
            takes: Duration::from_secs(takes),
        }),
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
    let queue = Noted {
        buries: true,
        ..Noted::default()
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
    let queue = Noted::default();
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
    let queue = Noted::default();
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
    let queue = Noted {
        buries: true,
        ..Noted::default()
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
    let queue = Noted::default();
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
    let queue = Noted {
        slow: Duration::from_secs(8),
        ..Noted::default()
    };
    let batches = batches(10, 0, [failed("500: it threw")]);
    batches.process(&queue, three()).await;
    assert_eq!(
        *queue.said.lock(),
        ["back receipt-a 1", "extend 1", "back receipt-b 1", "back receipt-c 2"]
    );
}

fn too_large() -> Verdict {
    Verdict::TooLarge {
        reason: "413: too_large: send less".to_owned(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_too_large_is_halved_until_only_what_is_too_large_alone_fails() {
    let queue = Noted {
        buries: true,
        ..Noted::default()
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
    let queue = Noted::default();
    let batches = batches(10, 0, [too_large()]);
    let cutting = Script {
        verdicts: Mutex::new([too_large()].into()),
        takes: Duration::ZERO,
    };
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
}

#[test]
fn pauses_grow_to_five_minutes() {
    let all: Vec<u64> = [1, 2, 3, 9, 10, 70].map(|n| pause_after(n).as_secs()).into();
    assert_eq!(all, [1, 2, 4, 256, 300, 300]);
}

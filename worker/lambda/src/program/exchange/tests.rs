use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::Duration;

use super::*;

/// How long a thread that should wait is watched.
const MOMENT: Duration = Duration::from_millis(20);
/// How long something that should happen may take.
const LIMIT: Duration = Duration::from_secs(10);

fn event(id: &str) -> Event {
    Event {
        id: id.to_owned(),
        ..Event::default()
    }
}

/// Runs `call` on a thread and returns where its result comes.
fn beside<T: Send + 'static>(
    exchange: &Arc<Exchange>,
    call: impl FnOnce(&Exchange) -> T + Send + 'static,
) -> Receiver<T> {
    let (done, result) = sync_channel(1);
    let exchange = Arc::clone(exchange);
    thread::spawn(move || done.send(call(&exchange)));
    result
}

fn waits<T>(result: &Receiver<T>) -> bool {
    matches!(result.recv_timeout(MOMENT), Err(RecvTimeoutError::Timeout))
}

fn exit() -> ExitReason {
    ExitReason {
        kind: "Runtime.ExitError",
        message: "Runtime exited with error: exit status 3".to_owned(),
        code: 3,
    }
}

#[test]
fn an_event_goes_to_the_runtime_and_its_answer_back_one_at_a_time() {
    let exchange = Arc::new(Exchange::new());
    let next = beside(&exchange, Exchange::next);
    exchange.until_initialised();
    let parts = exchange.begin_turn(event("1")).unwrap();
    assert_eq!(next.recv_timeout(LIMIT).unwrap().unwrap().id, "1");
    let second = beside(&exchange, |exchange| exchange.begin_turn(event("2")));
    // One that asks again before it has answered gets the same event.
    assert_eq!(exchange.next().unwrap().id, "1");

    assert_eq!(
        exchange.respond("other", "InvocationResponse").unwrap_err(),
        Refusal::InvalidRequestId
    );
    let to = exchange.respond("1", "InvocationResponse").unwrap();
    to.send(ResponsePart::End).unwrap();
    exchange.responded();
    assert_eq!(parts.recv().unwrap(), ResponsePart::End);
    let Refusal::InvalidState(why) = exchange.respond("1", "InvocationResponse").unwrap_err() else {
        panic!("it has been answered");
    };
    assert!(
        why.contains("from RuntimeResponseSentState to InvocationResponse"),
        "{why}"
    );

    assert!(waits(&second));
    exchange.end_turn();
    assert!(matches!(
        exchange.respond("1", "InvocationErrorResponse"),
        Err(Refusal::InvalidState(_))
    ));
    let parts = second.recv_timeout(LIMIT).unwrap().unwrap();
    assert_eq!(exchange.next().unwrap().id, "2");
    assert_eq!(
        exchange.respond("1", "InvocationResponse").unwrap_err(),
        Refusal::InvalidRequestId
    );
    drop(parts);
}

#[test]
fn a_call_for_the_next_event_that_overtakes_an_answer_waits_for_its_end() {
    let exchange = Arc::new(Exchange::new());
    let first = beside(&exchange, Exchange::next);
    exchange.until_initialised();
    let _parts = exchange.begin_turn(event("1")).unwrap();
    first.recv_timeout(LIMIT).unwrap().unwrap();
    // One before the answer begins, one before it ends.
    let early = beside(&exchange, Exchange::next);
    assert!(waits(&early));
    let to = exchange.respond("1", "InvocationResponse").unwrap();
    let late = beside(&exchange, Exchange::next);
    thread::sleep(OVERTAKEN);
    assert!(waits(&early) && waits(&late));
    to.send(ResponsePart::End).unwrap();
    exchange.responded();
    exchange.end_turn();
    assert!(waits(&early) && waits(&late));
    let _parts = exchange.begin_turn(event("2")).unwrap();
    let given = [early, late].map(|next| next.recv_timeout(LIMIT).unwrap().unwrap().id.clone());
    assert_eq!(given, ["2", "2"]);
}

#[test]
fn a_runtime_that_waits_for_its_restore_is_told_once_and_gets_no_event_before() {
    let exchange = Arc::new(Exchange::new());
    assert!(!exchange.awaits_restore());
    let released = beside(&exchange, Exchange::restore_next);
    exchange.until_initialised();
    assert!(exchange.awaits_restore() && waits(&released));
    let restored = beside(&exchange, Exchange::restored);
    released.recv_timeout(LIMIT).unwrap().unwrap();
    // Its hooks run.
    assert!(waits(&restored));
    let next = beside(&exchange, Exchange::next);
    restored.recv_timeout(LIMIT).unwrap().unwrap();
    assert!(waits(&next) && !exchange.awaits_restore());
    exchange.restored().unwrap();
    assert!(matches!(exchange.restore_next(), Err(Refusal::InvalidState(_))));
}

#[test]
fn an_event_releases_a_runtime_that_was_not_told_of_its_restore() {
    let exchange = Arc::new(Exchange::new());
    let released = beside(&exchange, Exchange::restore_next);
    exchange.until_initialised();
    let _parts = exchange.begin_turn(event("1")).unwrap();
    released.recv_timeout(LIMIT).unwrap().unwrap();
    assert_eq!(exchange.next().unwrap().id, "1");
}

#[test]
fn an_error_of_a_restore_is_the_answer_to_it() {
    let exchange = Arc::new(Exchange::new());
    assert!(exchange.restore_error(Vec::new()).is_err());
    let released = beside(&exchange, Exchange::restore_next);
    exchange.until_initialised();
    let restored = beside(&exchange, Exchange::restored);
    released.recv_timeout(LIMIT).unwrap().unwrap();
    exchange.restore_error(b"why".to_vec()).unwrap();
    assert_eq!(restored.recv_timeout(LIMIT).unwrap().unwrap_err(), b"why");
}

#[test]
fn the_end_of_the_runtime_answers_who_waits_and_whoever_comes() {
    let exchange = Arc::new(Exchange::new());
    let next = beside(&exchange, Exchange::next);
    exchange.until_initialised();
    let parts = exchange.begin_turn(event("1")).unwrap();
    next.recv_timeout(LIMIT).unwrap().unwrap();
    let ended = beside(&exchange, |exchange| exchange.end(exit()));
    let ResponsePart::Failed(failure) = parts.recv_timeout(LIMIT).unwrap() else {
        panic!("it has ended");
    };
    let told = String::from_utf8(failure.body).unwrap();
    assert!(
        told.contains("RequestId: 1 Error: Runtime exited with error: exit status 3"),
        "{told}"
    );
    // This process stays until the answer is written.
    assert!(waits(&ended));
    exchange.end_turn();
    ended.recv_timeout(LIMIT).unwrap();
    assert_eq!(exchange.begin_turn(event("2")).unwrap_err(), exit());
}

#[test]
fn an_event_waits_for_the_extensions() {
    let exchange = Arc::new(Exchange::new());
    exchange.lock().extensions.push(Extension::started("e"));
    let initialised = beside(&exchange, Exchange::until_initialised);
    let next = beside(&exchange, Exchange::next);
    assert!(waits(&initialised));
    exchange.lock().extensions[0].stage = extensions::Stage::Ready;
    exchange.notify();
    initialised.recv_timeout(LIMIT).unwrap();
    exchange.lock().extensions[0].stage = extensions::Stage::Running;
    let begun = beside(&exchange, |exchange| exchange.begin_turn(event("1")).map(drop));
    assert!(waits(&begun) && waits(&next));
    exchange.lock().extensions[0].stage = extensions::Stage::Ready;
    exchange.notify();
    begun.recv_timeout(LIMIT).unwrap().unwrap();
    assert_eq!(next.recv_timeout(LIMIT).unwrap().unwrap().id, "1");
}

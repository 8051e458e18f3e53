use std::net::SocketAddr;

use futures::FutureExt as _;
use http::HeaderValue;
use rekindle_relay::InProcessRoles;

use super::*;
use crate::lease::tests::placement;

fn slots(scheduler: SocketAddr) -> Arc<Slots> {
    let token = HeaderValue::from_static("token");
    let client = SchedulerClient::new(&scheduler.to_string(), token, None, InProcessRoles::default());
    Slots::new(client.unwrap(), Duration::from_secs(60))
}

#[tokio::test]
async fn while_the_scheduler_is_away_invocations_wait_for_instances_that_are_there() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let slots = slots(listener.local_addr().unwrap());
    drop(listener);
    let function: FunctionId = "busy".parse().unwrap();
    let refused = slots.take(&function, None).await.err().unwrap();
    assert_eq!(refused.code, ErrorCode::Unavailable, "nothing of it is there");

    let mut leases = Leases::default();
    leases.add(
        &placement("i-a", 1, StartKind::Warm),
        None,
        &slots.gateway,
        Instant::now(),
    );
    slots.functions.lock().insert(
        function.clone(),
        Function {
            leases,
            ..Function::default()
        },
    );
    let first = slots.take(&function, None).await.unwrap();
    let mut second = Box::pin(slots.take(&function, None));
    let early = tokio::time::timeout(ASK_AGAIN * 2, &mut second).await;
    assert!(early.is_err(), "it waits");
    drop(first);
    assert_eq!(second.await.unwrap().leased.instance, "i-a".parse().unwrap());
}

#[tokio::test]
async fn what_was_found_gone_where_it_had_been_is_not_gone_from_where_it_is_leased_now() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let slots = slots(silent.local_addr().unwrap());
    let function: FunctionId = "moves".parse().unwrap();
    let granted = |slots: &Arc<Slots>, address: &str| {
        let mut functions = slots.functions.lock();
        let placement = rekindle_wire::internal::Placement {
            worker_address: address.to_owned(),
            ..placement("i-a", 3, StartKind::Warm)
        };
        slots.add(functions.entry(function.clone()).or_default(), None, &placement);
    };
    let gone = |slots: &Arc<Slots>| slots.functions.lock()[&function].gone.clone();
    granted(&slots, "127.0.0.1:1");
    let mut here = [(); 3].map(|()| slots.take(&function, None).now_or_never().unwrap().unwrap());
    here.iter_mut().for_each(Slot::is_gone);
    let [first, second, third] = here;
    drop(first);
    assert_eq!(gone(&slots), ["i-a".parse().unwrap()]);
    drop(second);
    granted(&slots, "127.0.0.1:2");
    assert_eq!(gone(&slots), []);
    drop(third);
    assert_eq!(gone(&slots), []);
    let there = slots.take(&function, None).now_or_never().unwrap().unwrap();
    assert_eq!(&*there.leased.address, "127.0.0.1:2");
}

#[tokio::test]
async fn so_many_wait_for_a_function_and_the_next_is_told_at_once_while_others_functions_wait() {
    // It accepts connections and never answers.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let slots = slots(silent.local_addr().unwrap());
    let busy: FunctionId = "busy".parse().unwrap();
    let mut waiting: Vec<_> = (0..WAITERS_MAX).map(|_| Box::pin(slots.take(&busy, None))).collect();
    assert!(waiting.iter_mut().all(|take| take.now_or_never().is_none()));
    assert_eq!(slots.levels().waiting, WAITERS_MAX);
    let refused = slots.take(&busy, None).now_or_never().unwrap().err().unwrap();
    assert_eq!(refused.code, ErrorCode::Throttled);
    assert!(slots.take(&"other".parse().unwrap(), None).now_or_never().is_none());
    let version = Some(VersionNumber(1));
    let refused = slots.take(&busy, version).now_or_never().unwrap().err().unwrap();
    assert_eq!(refused.code, ErrorCode::Throttled, "its versions wait together");
    // A waiter that leaves makes room.
    waiting.pop();
    assert!(slots.take(&busy, None).now_or_never().is_none());
}

#[tokio::test]
async fn the_scheduler_hears_of_a_returned_lease_before_it_is_asked_for_another() {
    let heard: Arc<Mutex<Vec<String>>> = Arc::default();
    let hears = heard.clone();
    let scheduler = axum::Router::new().fallback(move |uri: axum::http::Uri| async move {
        if uri.path() == "/internal/leases" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        hears.lock().push(uri.path().to_owned());
        axum::Json(serde_json::json!({ "give_back": [] }))
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let slots = slots(listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, scheduler).await });
    tokio::spawn(crate::keeper::report(slots.clone()));

    let function: FunctionId = "forced".parse().unwrap();
    let mut leases = Leases::default();
    let granted = placement("i-a", 1, StartKind::Booted);
    leases.add(&granted, None, &slots.gateway, Instant::now());
    let leased = leases.take_alone(&granted.instance, Instant::now()).unwrap();
    let entry = Function {
        leases,
        ..Function::default()
    };
    slots.functions.lock().insert(function.clone(), entry);
    drop(slots.slot(&function, leased));
    assert!(slots.take(&function, None).await.is_err(), "it grants none");
    let heard = heard.lock().clone();
    assert_eq!(heard, ["/internal/leases", "/internal/placements"]);
}

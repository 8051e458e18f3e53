//! Tests against a small server that counts its connections.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;

const LIMIT: Duration = Duration::from_secs(20);

/// Answers each request with `answer` of its head. The flag says whether the connection stays open.
async fn server(answer: impl Fn(&str) -> (Vec<u8>, bool) + Send + Sync + 'static) -> (u16, Arc<AtomicUsize>) {
    let answer = Arc::new(answer);
    server_of_connections(move || {
        let answer = Arc::clone(&answer);
        move |head: &str| answer(head)
    })
    .await
}

/// Like [`server`], with an `answer` for each connection.
async fn server_of_connections<A>(of_connection: impl Fn() -> A + Send + 'static) -> (u16, Arc<AtomicUsize>)
where
    A: FnMut(&str) -> (Vec<u8>, bool) + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            counted.fetch_add(1, Ordering::SeqCst);
            let mut answer = of_connection();
            tokio::spawn(async move {
                let (mut head, mut byte) = (Vec::new(), [0]);
                while stream.read(&mut byte).await.unwrap_or(0) == 1 {
                    head.push(byte[0]);
                    if head.ends_with(b"\r\n\r\n") {
                        let (text, goes_on) = answer(&String::from_utf8_lossy(&head));
                        stream.write_all(&text).await.unwrap();
                        if !goes_on {
                            return;
                        }
                        head.clear();
                    }
                }
            });
        }
    });
    (port, connections)
}

fn of(text: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}", text.len()).into_bytes()
}

async fn get(pool: &ConnectionPool, port: u16, path: &str) -> Result<Bytes, SendError> {
    ask(pool, port, "GET", path, Body::empty()).await
}

async fn ask(pool: &ConnectionPool, port: u16, method: &str, path: &str, body: Body) -> Result<Bytes, SendError> {
    let uri = format!("http://127.0.0.1:{port}{path}");
    let request = Request::builder().method(method).uri(uri).body(body).unwrap();
    let connect = || async move { TcpStream::connect(("127.0.0.1", port)).await.map(TokioIo::new) };
    let answer = tokio::time::timeout(LIMIT, pool.send(request, connect))
        .await
        .unwrap()?;
    let body = tokio::time::timeout(LIMIT, axum::body::to_bytes(Body::new(answer.into_body()), 1 << 24));
    Ok(body.await.unwrap().unwrap())
}

#[tokio::test]
async fn a_connection_is_used_again_after_a_whole_answer() {
    let (port, connections) = server(|head| (of(head.lines().next().unwrap_or_default()), true)).await;
    let pool = ConnectionPool::new(HeadLimits::FUNCTION, KeepAlive::Unlimited);
    for n in 0..10 {
        let body = get(&pool, port, &format!("/{n}?q")).await.unwrap();
        assert_eq!(body, format!("GET /{n}?q HTTP/1.1"));
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1);
    pool.close_idle();
    get(&pool, port, "/").await.unwrap();
    assert_eq!(connections.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_connection_that_was_made_ahead_carries_the_first_request() {
    let (port, connections) = server(|head| (of(head.lines().next().unwrap_or_default()), true)).await;
    let pool = ConnectionPool::new(HeadLimits::FUNCTION, KeepAlive::Timeout);
    let connect = || async move { TcpStream::connect(("127.0.0.1", port)).await.map(TokioIo::new) };
    for _ in 0..2 {
        pool.connect_ahead(connect).await.unwrap();
        assert_eq!(pool.idle.lock().len(), 1, "one is enough");
    }
    assert_eq!(get(&pool, port, "/").await.unwrap(), "GET / HTTP/1.1");
    assert_eq!(connections.load(Ordering::SeqCst), 1);

    // A request that cannot be sent twice makes its own once this one has been idle for long: it may be closed.
    pool.close_idle();
    pool.connect_ahead(connect).await.unwrap();
    tokio::time::sleep(IDLE_BRIEF + Duration::from_millis(100)).await;
    let answer = ask(&pool, port, "POST", "/", Body::from("1")).await.unwrap();
    assert_eq!(answer, "POST / HTTP/1.1");
    assert_eq!(connections.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn an_answer_without_a_body_gives_its_connection_back_at_once() {
    let (port, connections) = server(|_| (b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(), true)).await;
    let pool = ConnectionPool::new(HeadLimits::FUNCTION, KeepAlive::Unlimited);
    for _ in 0..3 {
        assert_eq!(get(&pool, port, "/").await.unwrap(), "");
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_long_answer_is_driven_by_a_task_and_its_connection_used_again() {
    let long = "x".repeat(8 << 20);
    let (port, connections) = server(move |_| (of(&long), true)).await;
    let pool = ConnectionPool::new(HeadLimits::FUNCTION, KeepAlive::Unlimited);
    for _ in 0..3 {
        assert_eq!(get(&pool, port, "/").await.unwrap().len(), 8 << 20);
        // Its task ends after the last byte of the response was read.
        for _ in 0..1000 {
            if pool.idle.lock().iter_mut().any(PooledConnection::is_ready) {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_connection_that_was_closed_meanwhile_is_passed_over() {
    // It announces that the connection stays open, but closes it.
    let (port, connections) = server(|_| (of("bye"), false)).await;
    let pool: ConnectionPool = ConnectionPool::new(HeadLimits::FUNCTION, KeepAlive::Unlimited);
    for n in 1..=3 {
        assert_eq!(get(&pool, port, "/").await.unwrap(), "bye");
        assert_eq!(connections.load(Ordering::SeqCst), n);
        // Waits until the end of the connection is visible.
        let seen = async {
            while pool.idle.lock().iter_mut().any(PooledConnection::is_ready) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(LIMIT, seen).await.unwrap();
    }
}

/// A server that answers one request on each connection. When the second request arrives, it closes the connection, as
/// a server does whose keep-alive timeout fires at that moment. Returns also how many requests it has read.
async fn closes_at_the_second() -> (u16, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&requests);
    let (port, connections) = server_of_connections(move || {
        let (counted, mut first) = (Arc::clone(&counted), true);
        move |_: &str| {
            counted.fetch_add(1, Ordering::SeqCst);
            match std::mem::replace(&mut first, false) {
                true => (of("first"), true),
                false => (Vec::new(), false),
            }
        }
    })
    .await;
    (port, connections, requests)
}

#[tokio::test]
async fn a_safe_request_is_sent_once_more_if_the_connection_closes_under_it() {
    let (port, connections, requests) = closes_at_the_second().await;
    let pool = ConnectionPool::new(HeadLimits::FUNCTION, KeepAlive::Timeout);
    for method in ["GET", "OPTIONS", "TRACE", "GET"] {
        let answer = ask(&pool, port, method, "/", Body::empty()).await.unwrap();
        assert_eq!(answer, "first");
    }
    assert_eq!(connections.load(Ordering::SeqCst), 4);
    assert_eq!(requests.load(Ordering::SeqCst), 1 + 3 * 2);
}

#[tokio::test]
async fn a_request_that_may_act_is_not_sent_twice() {
    let (port, _, requests) = closes_at_the_second().await;
    let pool = ConnectionPool::new(HeadLimits::FUNCTION, KeepAlive::Timeout);
    for (n, (method, body)) in [("POST", ""), ("DELETE", ""), ("GET", "with a body")]
        .into_iter()
        .enumerate()
    {
        get(&pool, port, "/").await.unwrap();
        let answer = ask(&pool, port, method, "/", Body::from(body)).await;
        assert!(matches!(answer, Err(SendError::Broken(_))), "{method}: {answer:?}");
        assert_eq!(requests.load(Ordering::SeqCst), 2 * (n + 1), "{method}");
    }
}

#[tokio::test]
async fn a_request_that_may_act_gets_no_connection_that_was_idle_for_long() {
    let (port, connections, _) = closes_at_the_second().await;
    let pool = ConnectionPool::new(HeadLimits::FUNCTION, KeepAlive::Timeout);
    for n in 1..=3 {
        assert_eq!(
            ask(&pool, port, "POST", "/", Body::from("acts")).await.unwrap(),
            "first"
        );
        assert_eq!(connections.load(Ordering::SeqCst), n);
        let mut idle = pool.idle.lock();
        assert_eq!(idle.len(), 1, "the one that was idle for too long is closed");
        idle[0].since -= IDLE_BRIEF + Duration::from_millis(1);
    }
}

#[tokio::test]
async fn a_body_that_the_destination_leaves_unread_is_nobodys_request() {
    // It reads heads alone, as many small servers do.
    let (port, connections) = server(|head| (of(head.lines().next().unwrap_or_default()), true)).await;
    let pool = ConnectionPool::new(HeadLimits::FUNCTION, KeepAlive::Timeout).without_reuse_after_bodies();
    for n in 1..=4 {
        let hidden = Body::from("GET /hidden HTTP/1.1\r\nhost: x\r\n\r\n");
        let answer = ask(&pool, port, "POST", "/seen", hidden).await.unwrap();
        assert_eq!(answer, "POST /seen HTTP/1.1");
        assert_eq!(get(&pool, port, "/next").await.unwrap(), "GET /next HTTP/1.1");
        // The connection of the request without a body is used for the next one with a body.
        assert_eq!(connections.load(Ordering::SeqCst), n + 1);
    }
}

#[tokio::test]
async fn a_body_where_none_may_be_is_nobodys_answer() {
    let (port, connections) = server(|head| {
        let answer = match head.split(' ').nth(1) {
            // The head ends the answer, and what follows comes later.
            Some("/none") => b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(),
            Some("/same") => b"HTTP/1.1 304 Not Modified\r\n\r\n".to_vec(),
            _ => of(head.lines().next().unwrap_or_default()),
        };
        (answer, true)
    })
    .await;
    let pool = ConnectionPool::new(HeadLimits::FUNCTION, KeepAlive::Timeout).without_reuse_after_bodies();
    for (n, (method, path)) in [("HEAD", "/page"), ("GET", "/none"), ("GET", "/same")]
        .into_iter()
        .enumerate()
    {
        assert_eq!(ask(&pool, port, method, path, Body::empty()).await.unwrap(), "");
        assert_eq!(get(&pool, port, "/next").await.unwrap(), "GET /next HTTP/1.1");
        pool.close_idle();
        assert_eq!(connections.load(Ordering::SeqCst), 2 * (n + 1), "{method} {path}");
    }
}

#[tokio::test]
async fn a_request_that_may_be_left_unread_says_that_it_is_the_last() {
    let (port, _) = server(|head| (of(head), true)).await;
    let pool = ConnectionPool::new(HeadLimits::FUNCTION, KeepAlive::Timeout).without_reuse_after_bodies();
    let says_so = |seen: Bytes| String::from_utf8_lossy(&seen).contains("connection: close");
    assert!(says_so(ask(&pool, port, "POST", "/", Body::from("x")).await.unwrap()));
    assert!(!says_so(get(&pool, port, "/").await.unwrap()));
}

#[tokio::test]
async fn a_request_is_not_sent_again_over_a_connection_that_has_just_been_opened() {
    let (port, connections) = server(|_| (Vec::new(), false)).await;
    let pool = ConnectionPool::new(HeadLimits::FUNCTION, KeepAlive::Timeout);
    assert!(matches!(get(&pool, port, "/").await, Err(SendError::Broken(_))));
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_function_that_ends_under_a_request_is_told_as_a_broken_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let ends = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = [0; 1024];
        assert!(stream.read(&mut head).await.unwrap() > 0);
        stream.write_all(&of("first")).await.unwrap();
        assert!(stream.read(&mut head).await.unwrap() > 0);
        drop(listener);
    });
    let pool = ConnectionPool::new(HeadLimits::FUNCTION, KeepAlive::Timeout);
    get(&pool, port, "/").await.unwrap();
    assert!(matches!(get(&pool, port, "/").await, Err(SendError::Broken(_))));
    ends.await.unwrap();
}

#[tokio::test]
async fn an_answer_that_nobody_reads_closes_its_connection() {
    let (port, connections) = server(|_| (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf".to_vec(), true)).await;
    let pool: ConnectionPool = ConnectionPool::new(HeadLimits::FUNCTION, KeepAlive::Unlimited);
    let connect = || async move { TcpStream::connect(("127.0.0.1", port)).await.map(TokioIo::new) };
    for n in 1..=2 {
        let request = Request::get("http://function/").body(Body::empty()).unwrap();
        drop(pool.send(request, connect).await.unwrap());
        assert!(pool.idle.lock().is_empty());
        assert_eq!(connections.load(Ordering::SeqCst), n);
    }
}

#[tokio::test]
async fn who_cannot_be_reached_is_told_apart_from_who_does_not_answer() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let pool = ConnectionPool::new(HeadLimits::FUNCTION, KeepAlive::Unlimited);
    assert!(matches!(get(&pool, port, "/").await, Err(SendError::Connect(_))));
    let (port, _) = server(|_| (Vec::new(), false)).await;
    assert!(matches!(get(&pool, port, "/").await, Err(SendError::Broken(_))));
}

#[tokio::test]
async fn what_is_no_answer_is_told_apart_from_a_broken_connection() {
    let head = |lines: usize, bytes: usize| {
        let header = |n: usize| format!("x-{n}: {}\r\n", "v".repeat(bytes));
        let headers: String = (0..lines).map(header).collect();
        format!("HTTP/1.1 200 OK\r\n{headers}content-length: 0\r\n\r\n").into_bytes()
    };
    let (port, connections) = server(move |asked| {
        let answer = match asked.split(' ').nth(1).unwrap_or_default() {
            "/many" => head(300, 1),
            "/long" => head(2, 40_000),
            "/fits" => head(250, 200),
            "/other" => b"+OK this is another protocol\r\n\r\n".to_vec(),
            _ => Vec::new(),
        };
        (answer, false)
    })
    .await;
    let pool: ConnectionPool = ConnectionPool::new(HeadLimits::FUNCTION, KeepAlive::Unlimited);
    assert!(matches!(get(&pool, port, "/many").await, Err(SendError::HeadTooLarge)));
    assert!(matches!(get(&pool, port, "/long").await, Err(SendError::HeadTooLarge)));
    assert!(matches!(get(&pool, port, "/other").await, Err(SendError::Malformed(_))));
    assert!(matches!(get(&pool, port, "/closes").await, Err(SendError::Broken(_))));
    assert_eq!(get(&pool, port, "/fits").await.unwrap(), "");
    assert_eq!(connections.load(Ordering::SeqCst), 5);
}

#[tokio::test]
async fn an_answer_before_the_body_was_read_arrives_although_the_server_closes() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = [0; 64];
            let _some = stream.read(&mut head).await.unwrap();
            // Time for the body to fill all buffers.
            tokio::time::sleep(Duration::from_millis(10)).await;
            stream.write_all(&of("too much")).await.unwrap();
            // Closes with the rest unread, which resets the connection.
        }
    });
    let pool = ConnectionPool::new(HeadLimits::FUNCTION, KeepAlive::Unlimited).without_reuse_after_bodies();
    for _ in 0..20 {
        let piece = Bytes::from(vec![b'x'; 64 << 10]);
        let pieces = futures::stream::iter((0..512).map(move |_| Ok::<_, std::convert::Infallible>(piece.clone())));
        let answer = ask(&pool, port, "POST", "/", Body::from_stream(pieces)).await.unwrap();
        assert_eq!(answer, "too much");
    }
}

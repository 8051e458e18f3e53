//! The name server that functions ask: it passes each question on to the host's own resolvers, wherever they are (also on the
//! host's loopback), and the answer back. It reads no more of a message than its header.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream, UdpSocket};

/// Where the host's resolvers are named.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// How many of them are asked, as the C library does.
const SERVERS_MAX: usize = 3;
/// How long each may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// How long a conversation over TCP may take.
const STREAM_LIMIT: Duration = Duration::from_secs(15);
/// Questions of one sandbox that wait at once; of more, the last are dropped.
const WAITING_EACH: usize = 64;
/// Questions of all.
const WAITING: usize = 2048;
/// The longest message, bytes.
const MESSAGE_MAX: usize = 65_535;
/// The length of a message's header, bytes.
const HEADER: usize = 12;

/// Answers at these sockets until dropped.
///
/// # Errors
/// When a socket cannot be used.
pub(super) fn serve(
    datagrams: Vec<std::net::UdpSocket>,
    streams: Vec<std::net::TcpListener>,
) -> io::Result<impl Future<Output = ()> + Send + use<>> {
    let server = Arc::new(Server::default());
    let mut all: Vec<futures::future::BoxFuture<'static, ()>> = Vec::new();
    for socket in datagrams {
        socket.set_nonblocking(true)?;
        all.push(Box::pin(
            Arc::clone(&server).datagrams(Arc::new(UdpSocket::from_std(socket)?)),
        ));
    }
    for listener in streams {
        listener.set_nonblocking(true)?;
        all.push(Box::pin(Arc::clone(&server).streams(TcpListener::from_std(listener)?)));
    }
    Ok(async move {
        futures::future::join_all(all).await;
    })
}

#[derive(Default)]
struct Server {
    waiting: Mutex<HashMap<IpAddr, usize>>,
    resolvers: Mutex<Resolvers>,
}

/// One question's place among those that wait.
struct Place(Arc<Server>, IpAddr);

impl Drop for Place {
    fn drop(&mut self) {
        let mut waiting = self.0.waiting.lock();
        if let Some(count) = waiting.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                waiting.remove(&self.1);
            }
        }
    }
}

impl Server {
    fn place(self: &Arc<Self>, from: IpAddr) -> Option<Place> {
        let mut waiting = self.waiting.lock();
        let all: usize = waiting.values().sum();
        let count = waiting.entry(from).or_default();
        if all >= WAITING || *count >= WAITING_EACH {
            return None;
        }
        *count += 1;
        Some(Place(Arc::clone(self), from))
    }

    async fn datagrams(self: Arc<Self>, socket: Arc<UdpSocket>) {
        let mut room = vec![0; MESSAGE_MAX];
        loop {
            let (length, from) = match socket.recv_from(&mut room).await {
                Ok(received) => received,
                // Of an answer that could not be delivered; the socket is well.
                Err(_) => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    continue;
                }
            };
            let Some(place) = self.place(from.ip()) else { continue };
            let (question, socket) = (room[..length].to_vec(), Arc::clone(&socket));
            tokio::spawn(async move {
                if let Some(answer) = place.0.ask(question).await {
                    // A sandbox that is gone needs none.
                    let _ = socket.send_to(&answer, from).await;
                }
            });
        }
    }

    /// The answer to a question: that of the first resolver that gives one, else that there is none now.
    async fn ask(&self, mut question: Vec<u8>) -> Option<Vec<u8>> {
        if question.len() < HEADER {
            return None;
        }
        let resolvers = self.resolvers.lock().current();
        for resolver in resolvers {
            let asked = tokio::time::timeout(ANSWER_LIMIT, ask_one(resolver, &question)).await;
            if let Ok(Ok(answer)) = asked {
                return Some(answer);
            }
        }
        // "Server failure", as an answer.
        question[2] |= 0x80;
        question[3] = question[3] & 0xf0 | 2;
        Some(question)
    }

    async fn streams(self: Arc<Self>, listener: TcpListener) {
        loop {
            let Ok((client, from)) = listener.accept().await else {
                // Too many open files, most likely.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let Some(place) = self.place(from.ip()) else { continue };
            tokio::spawn(tokio::time::timeout(STREAM_LIMIT, async move {
                place.0.pass_on(client).await;
            }));
        }
    }

    async fn pass_on(&self, mut client: TcpStream) {
        let resolvers = self.resolvers.lock().current();
        for resolver in resolvers {
            let connected = tokio::time::timeout(ANSWER_LIMIT, TcpStream::connect(resolver)).await;
            if let Ok(Ok(mut server)) = connected {
                // Whoever ends it first ends it.
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                return;
            }
        }
    }
}

/// Asks from a port of its own, so that answers cannot be guessed easily.
async fn ask_one(resolver: SocketAddr, question: &[u8]) -> io::Result<Vec<u8>> {
    let any: IpAddr = if resolver.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(resolver).await?;
    socket.send(question).await?;
    let mut room = vec![0; MESSAGE_MAX];
    loop {
        let length = socket.recv(&mut room).await?;
        // With the question's number.
        if length >= HEADER && room[..2] == question[..2] {
            room.truncate(length);
            return Ok(room);
        }
    }
}

/// The host's resolvers, read again when their file has changed.
#[derive(Default)]
struct Resolvers {
    changed: Option<SystemTime>,
    all: Vec<SocketAddr>,
}

impl Resolvers {
    fn current(&mut self) -> Vec<SocketAddr> {
        let changed = std::fs::metadata(RESOLV_CONF).and_then(|m| m.modified()).ok();
        if changed.is_none() || changed != self.changed {
            self.changed = changed;
            self.all = resolvers(&std::fs::read_to_string(RESOLV_CONF).unwrap_or_default());
        }
        self.all.clone()
    }
}

/// The resolvers that a resolv.conf names; the host itself where it names none, as the C library has it.
fn resolvers(text: &str) -> Vec<SocketAddr> {
    let named = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let address = (words.next()? == "nameserver").then(|| words.next())??;
        Some(SocketAddr::new(address.parse().ok()?, 53))
    });
    let mut all: Vec<SocketAddr> = named.take(SERVERS_MAX).collect();
    if all.is_empty() {
        all.push(SocketAddr::from((Ipv4Addr::LOCALHOST, 53)));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolvers_are_read_as_the_c_library_reads_them() {
        let text = "# c\nsearch lan\nnameserver 10.1.2.3\n nameserver ::1 # x\nnameserver fe80::1%eth0\nnameserver 1.1.1.1\nnameserver 8.8.8.8\n";
        let all: Vec<String> = resolvers(text).iter().map(ToString::to_string).collect();
        assert_eq!(all, ["10.1.2.3:53", "[::1]:53", "1.1.1.1:53"]);
        assert_eq!(resolvers("options edns0\n"), [SocketAddr::from(([127, 0, 0, 1], 53))]);
    }

    #[test]
    fn one_sandbox_cannot_take_the_places_of_others() {
        let server = Arc::new(Server::default());
        let (greedy, other) = (IpAddr::from([198, 18, 1, 1]), IpAddr::from([198, 18, 1, 2]));
        let held: Vec<_> = (0..WAITING_EACH).map(|_| server.place(greedy).unwrap()).collect();
        assert!(server.place(greedy).is_none());
        assert!(server.place(other).is_some());
        drop(held);
        assert!(server.place(greedy).is_some());
        assert!(server.waiting.lock().is_empty());
    }

    #[tokio::test]
    async fn a_question_nobody_answers_is_answered_with_a_failure() {
        let server = Server::default();
        // A resolver on a port where nothing listens.
        let closed = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let changed = std::fs::metadata(RESOLV_CONF).and_then(|m| m.modified()).ok();
        *server.resolvers.lock() = Resolvers {
            changed,
            all: vec![closed],
        };
        if changed.is_some() {
            let question = [7, 8, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, b'x', 0, 0, 1, 0, 1].to_vec();
            let answer = server.ask(question.clone()).await.unwrap();
            assert_eq!(answer[..4], [7, 8, 0x81, 2]);
            assert_eq!(answer[4..], question[4..]);
        }
        assert_eq!(server.ask(vec![1, 2, 3]).await, None);
    }
}

//! The name server of functions. It forwards each question to the host's own resolvers, wherever they are (also on the
//! host's loopback), and returns the answer.
//!
//! Names of functions it answers itself (`own`).
//!
//! `question` defines what a question is. Nothing else reaches a resolver: it trusts this host, and may let it do more
//! than ask, such as change records or transfer zones.

mod own;
mod question;
mod rate;

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use question::MessageKind;
use rate::Rate;

use super::plan::GATEWAY;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

/// The file that names the host's resolvers.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// Maximum number of resolvers to ask, the same as in the C library.
const SERVERS_MAX: usize = 3;
/// How long each resolver may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// How long a TCP connection may last.
const STREAM_LIMIT: Duration = Duration::from_secs(15);
/// Maximum number of waiting questions of one sandbox. Further ones are dropped.
const WAITING_EACH: usize = 64;
/// Maximum number of waiting questions of all sandboxes.
const WAITING: usize = 2048;
/// Maximum size of a message, in bytes.
const MESSAGE_MAX: usize = 65_535;
/// Number of known sandboxes above which those that no longer ask are forgotten.
const FORGET_AT: usize = 1_024;

/// Serves at these sockets until dropped.
///
/// # Errors
/// Returns an error when a socket cannot be used.
pub(super) fn serve(
    datagrams: Vec<std::net::UdpSocket>,
    streams: Vec<std::net::TcpListener>,
) -> io::Result<impl Future<Output = ()> + Send + use<>> {
    let server = Arc::new(DnsServer::default());
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
struct DnsServer {
    askers: Mutex<HashMap<IpAddr, DnsClient>>,
    resolvers: Mutex<Resolvers>,
}

struct DnsClient {
    waiting: usize,
    rate: Rate,
}

/// The place of one question among those that wait.
struct QuestionPermit(Arc<DnsServer>, IpAddr);

impl Drop for QuestionPermit {
    fn drop(&mut self) {
        if let Some(asker) = self.0.askers.lock().get_mut(&self.1) {
            asker.waiting = asker.waiting.saturating_sub(1);
        }
    }
}

impl DnsServer {
    /// Reserves a place for a question, or for a connection with several. Returns `None` if the maximum number waits.
    fn place(self: &Arc<Self>, from: IpAddr) -> Option<QuestionPermit> {
        let mut askers = self.askers.lock();
        let all: usize = askers.values().map(|a| a.waiting).sum();
        let now = Instant::now();
        if askers.len() >= FORGET_AT && !askers.contains_key(&from) {
            askers.retain(|_, asker| asker.waiting > 0 || !asker.rate.is_full(now));
        }
        let asker = askers.entry(from).or_insert_with(|| DnsClient {
            waiting: 0,
            rate: Rate::full(now),
        });
        if all >= WAITING || asker.waiting >= WAITING_EACH {
            return None;
        }
        asker.waiting += 1;
        Some(QuestionPermit(Arc::clone(self), from))
    }

    /// Returns whether a sandbox may ask one more question now.
    fn may_ask(&self, from: IpAddr) -> bool {
        let mut askers = self.askers.lock();
        askers
            .get_mut(&from)
            .is_some_and(|asker| asker.rate.take(Instant::now()))
    }

    async fn datagrams(self: Arc<Self>, socket: Arc<UdpSocket>) {
        let mut room = vec![0; MESSAGE_MAX];
        loop {
            let (length, from) = match socket.recv_from(&mut room).await {
                Ok(received) => received,
                // The error belongs to an answer that could not be delivered; the socket still works.
                Err(_) => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    continue;
                }
            };
            let Some(place) = self.place(from.ip()) else { continue };
            if !self.may_ask(from.ip()) {
                continue;
            }
            let (question, socket) = (room[..length].to_vec(), Arc::clone(&socket));
            tokio::spawn(async move {
                if let Some(answer) = place.0.ask(question).await {
                    // A sandbox that is gone needs no answer.
                    let _ = socket.send_to(&answer, from).await;
                }
            });
        }
    }

    /// Answers a message. A question gets the answer of the first resolver that gives one, or a failure if none does
    /// now. Anything else gets a refusal. Returns `None` for what is no message, or is itself an answer.
    async fn ask(&self, message: Vec<u8>) -> Option<Vec<u8>> {
        match question::judge(&message) {
            MessageKind::Question => {
                if let Some(answer) = own::answer(&message, GATEWAY) {
                    return Some(answer);
                }
            }
            MessageKind::Refused => return Some(question::answered(message, question::REFUSED)),
            MessageKind::Nothing => return None,
        }
        let resolvers = self.resolvers.lock().current();
        for resolver in resolvers {
            let asked = tokio::time::timeout(ANSWER_LIMIT, ask_one(resolver, &message)).await;
            if let Ok(Ok(answer)) = asked {
                return Some(answer);
            }
        }
        Some(question::answered(message, question::SERVER_FAILURE))
    }

    async fn streams(self: Arc<Self>, listener: TcpListener) {
        loop {
            let Ok((client, from)) = listener.accept().await else {
                // Most likely, too many files are open.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let Some(place) = self.place(from.ip()) else { continue };
            tokio::spawn(tokio::time::timeout(STREAM_LIMIT, async move {
                // Either side may close the connection.
                drop(place.0.converse(client, from.ip()).await);
            }));
        }
    }

    /// Answers questions on a connection, one after the other, through one connection to a resolver.
    async fn converse(&self, mut client: TcpStream, from: IpAddr) -> io::Result<()> {
        let mut server: Option<TcpStream> = None;
        loop {
            let message = read_message(&mut client).await?;
            // A TCP client can be slowed down by not answering any more.
            if !self.may_ask(from) {
                return Ok(());
            }
            let answer = match question::judge(&message) {
                MessageKind::Question if let Some(answer) = own::answer(&message, GATEWAY) => answer,
                MessageKind::Question => {
                    let mut resolver = match server.take() {
                        Some(connected) => connected,
                        None => self.connect().await?,
                    };
                    write_message(&mut resolver, &message).await?;
                    let answer = read_message(&mut resolver).await?;
                    server = Some(resolver);
                    answer
                }
                MessageKind::Refused => question::answered(message, question::REFUSED),
                MessageKind::Nothing => return Ok(()),
            };
            write_message(&mut client, &answer).await?;
        }
    }

    async fn connect(&self) -> io::Result<TcpStream> {
        let resolvers = self.resolvers.lock().current();
        for resolver in resolvers {
            let connected = tokio::time::timeout(ANSWER_LIMIT, TcpStream::connect(resolver)).await;
            if let Ok(Ok(server)) = connected {
                return Ok(server);
            }
        }
        Err(io::ErrorKind::ConnectionRefused.into())
    }
}

/// Reads a message from a connection, where its length precedes it in two bytes (RFC 1035, 4.2.2).
async fn read_message(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = stream.read_u16().await?;
    let mut message = vec![0; length.into()];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

async fn write_message(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len()).map_err(io::Error::other)?;
    let mut framed = length.to_be_bytes().to_vec();
    framed.extend_from_slice(message);
    stream.write_all(&framed).await
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
        // The answer must have the question's number.
        if length >= question::HEADER && room[..2] == question[..2] {
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

/// Returns the resolvers in a resolv.conf. If it names none, returns the host itself, as the C library does.
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
        let text = "# c\nsearch lan\nnameserver 10.1.2.3\n nameserver ::1 # x\nnameserver fe80::1%eth0\n\
            nameserver 1.1.1.1\nnameserver 8.8.8.8\n";
        let all: Vec<String> = resolvers(text).iter().map(ToString::to_string).collect();
        assert_eq!(all, ["10.1.2.3:53", "[::1]:53", "1.1.1.1:53"]);
        assert_eq!(resolvers("options edns0\n"), [SocketAddr::from(([127, 0, 0, 1], 53))]);
    }

    #[test]
    fn one_sandbox_cannot_take_the_places_of_others() {
        let server = Arc::new(DnsServer::default());
        let (greedy, other) = (IpAddr::from([198, 18, 1, 1]), IpAddr::from([198, 18, 1, 2]));
        let held: Vec<_> = (0..WAITING_EACH).map(|_| server.place(greedy).unwrap()).collect();
        assert!(server.place(greedy).is_none());
        assert!(server.place(other).is_some());
        drop(held);
        assert!(server.place(greedy).is_some());
        assert_eq!(server.askers.lock()[&greedy].waiting, 0);
    }

    #[test]
    fn one_sandboxs_questions_a_second_are_bounded_and_anothers_are_not_among_them() {
        let server = Arc::new(DnsServer::default());
        let (greedy, other) = (IpAddr::from([198, 18, 1, 1]), IpAddr::from([198, 18, 1, 2]));
        let _places = [server.place(greedy).unwrap(), server.place(other).unwrap()];
        let asked = (0..100_000).take_while(|_| server.may_ask(greedy)).count();
        assert!((rate::BURST..100_000).contains(&asked), "{asked}");
        assert!(server.may_ask(other));
    }

    #[test]
    fn sandboxes_that_ask_no_more_are_forgotten() {
        let server = Arc::new(DnsServer::default());
        for n in 0..3 * FORGET_AT {
            let from = u32::try_from(n).unwrap().to_be_bytes();
            drop(server.place(IpAddr::from(from)).unwrap());
        }
        assert!(server.askers.lock().len() <= FORGET_AT);
    }

    #[tokio::test]
    async fn over_a_connection_questions_are_passed_on_and_nothing_else_is() {
        let resolver = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let changed = std::fs::metadata(RESOLV_CONF).and_then(|m| m.modified()).ok();
        let Some(changed) = changed else { return };
        let server = Arc::new(DnsServer::default());
        *server.resolvers.lock() = Resolvers {
            changed: Some(changed),
            all: vec![resolver.local_addr().unwrap()],
        };
        // A resolver that answers everything, and reports what it was asked.
        let (heard, mut asked) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            let (mut stream, _) = resolver.accept().await.unwrap();
            while let Ok(message) = read_message(&mut stream).await {
                heard.send(message.clone()).unwrap();
                write_message(&mut stream, &question::answered(message, 0))
                    .await
                    .unwrap();
            }
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(Arc::clone(&server).streams(listener));
        let mut function = TcpStream::connect(address).await.unwrap();
        let good = question::tests::question(1, 1);
        let transfer = question::tests::question(252, 1);
        for (message, code) in [(&good, 0), (&transfer, question::REFUSED), (&good, 0)] {
            write_message(&mut function, message).await.unwrap();
            let answer = read_message(&mut function).await.unwrap();
            assert_eq!((answer[2] & 0x80, answer[3] & 0x0f), (0x80, code));
        }
        for _ in 0..2 {
            assert_eq!(asked.recv().await.unwrap(), good);
        }
        drop(function);
        assert_eq!(asked.recv().await, None, "a transfer of a zone was passed on");
    }

    #[tokio::test]
    async fn a_question_nobody_answers_is_answered_with_a_failure() {
        let server = DnsServer::default();
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
        let refused = server.ask(question::tests::question(251, 1)).await.unwrap();
        assert_eq!(refused[3] & 0x0f, question::REFUSED);
    }
}

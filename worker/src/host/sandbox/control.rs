//! The control connection to init. Init handles one request after the other, while a task reads its messages.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use parking_lot::Mutex;
use rekindle_init::protocol::{self, Call, Message, ReceiveError, Reply, Request};
use tokio::io::unix::AsyncFd;
use tokio::sync::{oneshot, watch};

use super::FunctionState;

/// Why init did not do what was requested.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Init is gone.
    #[error("the sandbox is gone")]
    Closed,
    /// It did not reply in time.
    #[error("init did not answer in time")]
    Timeout,
    /// The message could not be sent.
    #[error("send to init")]
    Send(#[source] io::Error),
    /// It reported a failure.
    #[error("{0}")]
    Refused(String),
    /// It reported a failure that may be temporary.
    #[error("{0}")]
    NotNow(String),
    /// It found a process that a checkpoint would miss.
    #[error("{0}")]
    Orphan(String),
    /// It found something else that a checkpoint would miss.
    #[error("{0}")]
    Holds(String),
}

/// Returns a connected pair. The worker's end is non-blocking.
pub(super) fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
    fcntl(&ours, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok((ours, theirs))
}

/// A reply, and the descriptors that came with it.
type ReplyWithDescriptors = (Reply, Vec<OwnedFd>);

/// The callers that wait for a reply, by request number.
#[derive(Clone, Default)]
struct PendingReplies(Arc<Mutex<Requests>>);

#[derive(Default)]
struct Requests {
    next: u64,
    open: HashMap<u64, oneshot::Sender<ReplyWithDescriptors>>,
    /// Init sends nothing any more.
    is_over: bool,
}

impl PendingReplies {
    /// Registers a new request. Returns its number and the future reply.
    fn ask(&self) -> Result<(u64, oneshot::Receiver<ReplyWithDescriptors>), ControlError> {
        let mut asked = self.0.lock();
        if asked.is_over {
            return Err(ControlError::Closed);
        }
        let (tell, answer) = oneshot::channel();
        let number = asked.next;
        asked.next += 1;
        asked.open.insert(number, tell);
        Ok((number, answer))
    }

    /// Delivers the reply to a request. The reply to a request that was given up is dropped.
    fn answer(&self, number: u64, answered: ReplyWithDescriptors) {
        if let Some(tell) = self.0.lock().open.remove(&number) {
            let _ = tell.send(answered);
        }
    }

    fn give_up(&self, number: u64) {
        self.0.lock().open.remove(&number);
    }

    /// Records that there will be no more replies.
    fn end(&self) {
        let mut asked = self.0.lock();
        asked.is_over = true;
        asked.open.clear();
    }
}

pub(super) struct Control {
    socket: Arc<AsyncFd<OwnedFd>>,
    /// Held by the sender; callers take turns in order of arrival.
    sending: tokio::sync::Mutex<()>,
    waiting: PendingReplies,
    function: watch::Receiver<FunctionState>,
    reader: tokio::task::JoinHandle<()>,
}

impl Control {
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        // SAFETY: the registered value owns the descriptor, so it stays open and the same as long as the registration.
        #[expect(unsafe_code, reason = "registering a descriptor asks for a promise about its life")]
        let registered = unsafe { AsyncFd::register(socket) };
        let socket = Arc::new(registered.map_err(io::Error::from)?);
        let waiting = PendingReplies::default();
        let (tell, function) = watch::channel(FunctionState::Alive);
        let reader = tokio::spawn(read(Arc::clone(&socket), waiting.clone(), tell));
        Ok(Self {
            socket,
            sending: tokio::sync::Mutex::default(),
            waiting,
            function,
            reader,
        })
    }

    pub(super) fn function_state(&self) -> watch::Receiver<FunctionState> {
        self.function.clone()
    }

    /// Sends a request and waits for its reply, which is not [`Reply::Failed`], and the descriptors that came with it.
    /// Several requests may be in flight at once: init handles them in the order in which these futures were first
    /// polled.
    pub(super) async fn request(
        &self,
        request: Request,
        fds: &[BorrowedFd<'_>],
        limit: Duration,
    ) -> Result<ReplyWithDescriptors, ControlError> {
        let (number, answer) = self.waiting.ask()?;
        let _forget = GiveUpOnDrop(&self.waiting, number);
        let call = Call { number, request };
        let exchange = async {
            self.send(&call, fds).await?;
            answer.await.map_err(|_| ControlError::Closed)
        };
        match tokio::time::timeout(limit, exchange).await {
            Err(_) => Err(ControlError::Timeout),
            Ok(Err(e)) => Err(e),
            Ok(Ok((Reply::Failed(text), _))) => Err(ControlError::Refused(text)),
            Ok(Ok((Reply::NotNow(text), _))) => Err(ControlError::NotNow(text)),
            Ok(Ok((Reply::Orphan(text), _))) => Err(ControlError::Orphan(text)),
            Ok(Ok((Reply::Holds(text), _))) => Err(ControlError::Holds(text)),
            Ok(Ok(answered)) => Ok(answered),
        }
    }

    async fn send(&self, call: &Call, fds: &[BorrowedFd<'_>]) -> Result<(), ControlError> {
        let _turn = self.sending.lock().await;
        loop {
            let mut ready = self.socket.writable().await.map_err(ControlError::Send)?;
            match ready.try_io(|s| protocol::send(s.get_ref().as_fd(), call, fds)) {
                Ok(sent) => return sent.map_err(ControlError::Send),
                Err(_would_block) => {}
            }
        }
    }
}

/// Gives a request up on drop: nobody waits for it any more.
struct GiveUpOnDrop<'a>(&'a PendingReplies, u64);

impl Drop for GiveUpOnDrop<'_> {
    fn drop(&mut self) {
        self.0.give_up(self.1);
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

async fn read(socket: Arc<AsyncFd<OwnedFd>>, waiting: PendingReplies, function: watch::Sender<FunctionState>) {
    let mut room = protocol::room();
    loop {
        let Ok(mut ready) = socket.readable().await else { break };
        let received = match ready.try_io(|s| match protocol::receive::<Message>(s.get_ref().as_fd(), &mut room) {
            Err(ReceiveError::Socket(e)) => Err(e),
            other => Ok(other),
        }) {
            Ok(received) => received,
            Err(_would_block) => continue,
        };
        match received {
            Ok(Ok((Message::Reply(number, answer), beside))) => waiting.answer(number, (answer, beside)),
            Ok(Ok((Message::Ended(cause), _))) => drop(function.send_replace(FunctionState::Ended(cause))),
            Ok(Err(ReceiveError::Closed)) | Err(_) => break,
            Ok(Err(e)) => {
                tracing::warn!(error = %e, "init is not understood");
                break;
            }
        }
    }
    waiting.end();
    function.send_if_modified(|state| {
        let alive = *state == FunctionState::Alive;
        if alive {
            *state = FunctionState::SandboxGone;
        }
        alive
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes the next request as init would.
    async fn next_call(init: &OwnedFd) -> Call {
        let init = init.try_clone().unwrap();
        let received =
            tokio::task::spawn_blocking(move || protocol::receive::<Call>(init.as_fd(), &mut protocol::room()));
        received.await.unwrap().unwrap().0
    }

    #[tokio::test]
    async fn an_answer_that_came_too_late_is_not_the_next_request_s() {
        let (ours, init) = socket_pair().unwrap();
        let control = Control::new(ours).unwrap();
        let hasty = control
            .request(Request::ReadProbe, &[], Duration::from_millis(20))
            .await;
        assert!(matches!(hasty, Err(ControlError::Timeout)));
        let late = next_call(&init).await;
        let say = |message: Message| protocol::send(init.as_fd(), &message, &[]).unwrap();
        let (answer, ()) = tokio::join!(
            control.request(Request::ReadProbe, &[], Duration::from_secs(20)),
            async {
                let call = next_call(&init).await;
                say(Message::Reply(late.number, Reply::Bytes(b"old".to_vec())));
                say(Message::Reply(call.number, Reply::Bytes(b"new".to_vec())));
            }
        );
        assert!(matches!(answer.unwrap(), (Reply::Bytes(new), _) if new == b"new"));
    }

    #[tokio::test]
    async fn requests_are_taken_in_their_order_and_each_gets_its_own_answer() {
        let (ours, init) = socket_pair().unwrap();
        let control = Control::new(ours).unwrap();
        let ask = |request| control.request(request, &[], Duration::from_secs(20));
        let (probe, held, ()) = tokio::join!(
            ask(Request::ReadProbe),
            ask(Request::Hold {
                clocks: None,
                adopts: false
            }),
            async {
                let (first, second) = (next_call(&init).await, next_call(&init).await);
                assert!(matches!(first.request, Request::ReadProbe) && matches!(second.request, Request::Hold { .. }));
                let say = |message: Message| protocol::send(init.as_fd(), &message, &[]).unwrap();
                say(Message::Reply(second.number, Reply::Done));
                say(Message::Reply(first.number, Reply::Bytes(b"probe".to_vec())));
            }
        );
        assert!(matches!(probe.unwrap(), (Reply::Bytes(probe), _) if probe == b"probe"));
        assert!(matches!(held.unwrap(), (Reply::Done, _)));
        // One request waits as init ends; one comes after.
        let ending = async {
            next_call(&init).await;
            drop(init);
        };
        let (waited, ()) = tokio::join!(ask(Request::ReadProbe), ending);
        assert!(matches!(waited, Err(ControlError::Closed)));
        assert!(matches!(ask(Request::ReadProbe).await, Err(ControlError::Closed)));
    }
}

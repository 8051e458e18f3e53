//! Talking to init: one request at a time, while a task of its own reads what init says.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::unistd::Pid;
use rekindle_init::protocol::{self, Answer, FUNCTION_PID, Message, ReceiveError, Request};
use tokio::io::unix::AsyncFd;
use tokio::sync::{Mutex, mpsc, watch};

use super::FunctionState;

/// Why init did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// It is gone.
    #[error("the sandbox is gone")]
    Closed,
    /// It did not answer in time.
    #[error("init did not answer in time")]
    Timeout,
    /// The message could not be sent.
    #[error("send to init")]
    Send(#[source] io::Error),
    /// It says that it failed.
    #[error("{0}")]
    Refused(String),
}

/// A connected pair: ours is non-blocking.
pub(super) fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
    fcntl(&ours, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok((ours, theirs))
}

pub(super) struct Control {
    socket: Arc<AsyncFd<OwnedFd>>,
    answers: Mutex<mpsc::Receiver<Answer>>,
    init: Arc<AtomicI32>,
    function: watch::Receiver<FunctionState>,
    reader: tokio::task::JoinHandle<()>,
}

impl Control {
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        // SAFETY: the descriptor is owned by what is registered, so it stays open and the same as long as the registration.
        #[expect(unsafe_code, reason = "registering a descriptor asks for a promise about its life")]
        let registered = unsafe { AsyncFd::register(socket) };
        let socket = Arc::new(registered.map_err(io::Error::from)?);
        let (answer, answers) = mpsc::channel(4);
        let (tell, function) = watch::channel(FunctionState::Alive);
        let init = Arc::new(AtomicI32::new(0));
        let reader = tokio::spawn(read(Arc::clone(&socket), answer, tell, Arc::clone(&init)));
        Ok(Self {
            socket,
            answers: Mutex::new(answers),
            init,
            function,
            reader,
        })
    }

    pub(super) fn init_pid(&self) -> Option<Pid> {
        Some(self.init.load(Ordering::Acquire))
            .filter(|p| *p > 0)
            .map(Pid::from_raw)
    }

    pub(super) fn function_state(&self) -> watch::Receiver<FunctionState> {
        self.function.clone()
    }

    /// Sends a request and waits for its answer. The bytes are those of [`Answer::Bytes`], else none.
    pub(super) async fn request(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        limit: Duration,
    ) -> Result<Vec<u8>, ControlError> {
        let mut answers = self.answers.lock().await;
        let exchange = async {
            loop {
                let mut ready = self.socket.writable().await.map_err(ControlError::Send)?;
                match ready.try_io(|s| protocol::send(s.get_ref().as_fd(), request, fds)) {
                    Ok(sent) => break sent.map_err(ControlError::Send)?,
                    Err(_would_block) => {}
                }
            }
            answers.recv().await.ok_or(ControlError::Closed)
        };
        match tokio::time::timeout(limit, exchange).await {
            Err(_) => Err(ControlError::Timeout),
            Ok(Err(e)) => Err(e),
            Ok(Ok(Answer::Failed(text))) => Err(ControlError::Refused(text)),
            Ok(Ok(Answer::Bytes(bytes))) => Ok(bytes),
            Ok(Ok(Answer::Done | Answer::Started(_))) => Ok(Vec::new()),
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

async fn read(
    socket: Arc<AsyncFd<OwnedFd>>,
    answer: mpsc::Sender<Answer>,
    function: watch::Sender<FunctionState>,
    init: Arc<AtomicI32>,
) {
    loop {
        let Ok(mut ready) = socket.readable().await else { break };
        let received = match ready.try_io(|s| match protocol::receive::<Message>(s.get_ref().as_fd()) {
            Err(ReceiveError::Socket(e)) => Err(e),
            other => Ok(other),
        }) {
            Ok(received) => received,
            Err(_would_block) => continue,
        };
        match received {
            Ok(Ok((Message::Forked(pid), _))) => init.store(pid, Ordering::Release),
            Ok(Ok((Message::Answer(a), _))) => {
                // An answer nobody waits for any more came too late.
                let _ = answer.try_send(a);
            }
            Ok(Ok((Message::Exited(pid, cause), _))) => {
                if pid == FUNCTION_PID {
                    function.send_replace(FunctionState::Ended(cause));
                }
            }
            Ok(Err(ReceiveError::Closed)) | Err(_) => break,
            Ok(Err(e)) => {
                tracing::warn!(error = %e, "init is not understood");
                break;
            }
        }
    }
    function.send_if_modified(|state| {
        let alive = *state == FunctionState::Alive;
        if alive {
            *state = FunctionState::SandboxGone;
        }
        alive
    });
}

//! What the runtime, the extensions and the platform wait for of each other.
//!
//! ```text
//! Started --/restore/next--> RestoreReady --restored, or an event--> Restoring
//!
//! Started, Restoring, ResponseSent --/next--> Ready --event--> Running
//! Running --/response or /error--> Responding --written--> ResponseSent
//! ```
//!
//! One invocation at a time has its turn. It begins when every extension has come back for an event, and ends when its
//! answer is written.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::extensions::{self, Extension};

/// Parts of an answer that may wait for the platform to take them.
const PARTS: usize = 4;

/// How much later the answer to an event may come than the call for the next.
const OVERTAKEN: Duration = Duration::from_millis(250);

/// An event for the runtime.
#[derive(Debug, Default)]
pub(crate) struct Event {
    pub(crate) id: String,
    pub(crate) deadline_ms: u64,
    /// As of X-Ray; empty if there is none.
    pub(crate) trace: String,
    /// Other headers of the runtime's.
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) content_type: String,
    pub(crate) body: Vec<u8>,
}

/// A part of an answer. The first is `Begin` or `Failed`, the last `End` or `Failed`.
#[derive(Debug, PartialEq)]
pub(crate) enum ResponsePart {
    Begin { is_streamed: bool, content_type: String },
    Bytes(Vec<u8>),
    End,
    Failed(Failure),
}

/// An error instead of an answer, or of the remainder of one.
#[derive(Debug, PartialEq)]
pub(crate) struct Failure {
    /// Whether the runtime said so, and goes on.
    pub(crate) is_function_s: bool,
    pub(crate) content_type: String,
    pub(crate) body: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Started,
    InitError,
    RestoreReady,
    Restoring,
    RestoreError,
    Ready,
    Running,
    Responding,
    ResponseSent,
}

impl Stage {
    /// Its name in errors, which is the emulator's.
    fn name(self) -> &'static str {
        match self {
            Self::Started => "Started",
            Self::InitError => "InitError",
            Self::RestoreReady => "RestoreReady",
            Self::Restoring => "Restoring",
            Self::RestoreError => "RuntimeRestoreErrorState",
            Self::Ready => "Ready",
            Self::Running => "Running",
            Self::Responding => "InvocationResponse",
            Self::ResponseSent => "RuntimeResponseSentState",
        }
    }
}

/// Why a call of the runtime is refused.
#[derive(Debug, PartialEq)]
pub(crate) enum Refusal {
    InvalidRequestId,
    /// It comes at the wrong time. The text says so.
    InvalidState(String),
}

/// Why nothing more is answered.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ExitReason {
    /// Its type, such as `Runtime.ExitError`.
    pub(crate) kind: &'static str,
    pub(crate) message: String,
    pub(crate) code: i32,
}

struct CurrentInvocation {
    event: Arc<Event>,
    is_taken: bool,
    /// Until someone answers.
    answer: Option<SyncSender<ResponsePart>>,
}

pub(crate) struct State {
    stage: Stage,
    turn: Option<CurrentInvocation>,
    turns: u64,
    /// The event of the last of them.
    event: Option<Arc<Event>>,
    /// The invocation that had the last turn which has ended.
    last: String,
    is_initialised: bool,
    ended: Option<ExitReason>,
    restore_error: Option<Vec<u8>>,
    pub(crate) extensions: Vec<Extension>,
}

impl State {
    /// The event of the last turn, if it is a later one than `seen`. The turn may have ended.
    pub(crate) fn event_after(&self, seen: u64) -> Option<(Arc<Event>, u64)> {
        let event = self.event.as_ref().filter(|_| self.turns > seen)?;
        Some((Arc::clone(event), self.turns))
    }

    pub(crate) fn is_initialised(&self) -> bool {
        self.is_initialised
    }

    fn invalid<T>(&self, to: &str) -> Result<T, Refusal> {
        Err(Refusal::InvalidState(format!(
            "State transition from {} to {to} failed for runtime. Error: State transition is not allowed",
            self.stage.name()
        )))
    }
}

/// The meeting point of all threads.
pub(crate) struct Exchange {
    state: Mutex<State>,
    changed: Condvar,
}

impl Exchange {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                stage: Stage::Started,
                turn: None,
                turns: 0,
                event: None,
                last: String::new(),
                is_initialised: false,
                ended: None,
                restore_error: None,
                extensions: Vec::new(),
            }),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn notify(&self) {
        self.changed.notify_all();
    }

    fn wait_while<'a>(
        &self,
        state: MutexGuard<'a, State>,
        mut condition: impl FnMut(&State) -> bool,
    ) -> MutexGuard<'a, State> {
        let waited = self.changed.wait_while(state, |state| condition(state));
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    // What the platform does.

    /// Waits until the runtime and all extensions are ready for an event, or for a snapshot.
    pub(crate) fn until_initialised(&self) {
        let is_ready = |state: &State| {
            matches!(state.stage, Stage::Ready | Stage::RestoreReady)
                && extensions::all_ready(&state.extensions, state.turns)
        };
        let mut state = self.wait_while(self.lock(), |state| !is_ready(state));
        state.is_initialised = true;
    }

    /// Whether the runtime waits for a restore.
    pub(crate) fn awaits_restore(&self) -> bool {
        self.lock().stage == Stage::RestoreReady
    }

    /// Tells a runtime that waits for it of the restore, and waits until it is ready for an event. Otherwise does
    /// nothing.
    ///
    /// # Errors
    /// What the runtime reports as its error, or says of its end.
    pub(crate) fn restored(&self) -> Result<(), Vec<u8>> {
        let mut state = self.lock();
        self.release(&mut state);
        let is_restoring = |state: &State| state.stage == Stage::Restoring && state.ended.is_none();
        let mut state = self.wait_while(state, |state| is_restoring(state));
        match (state.restore_error.take(), &state.ended) {
            (Some(error), _) => Err(error),
            (None, Some(ended)) => Err(ended.body("")),
            (None, None) => Ok(()),
        }
    }

    fn release(&self, state: &mut State) {
        if state.stage == Stage::RestoreReady {
            state.stage = Stage::Restoring;
            self.notify();
        }
    }

    /// Waits for a turn and begins it. The answer comes in parts. [`Self::end_turn`] has to follow.
    ///
    /// # Errors
    /// There will be no answer.
    pub(crate) fn begin_turn(&self, event: Event) -> Result<Receiver<ResponsePart>, ExitReason> {
        let waits = |state: &State| {
            state.ended.is_none() && (state.turn.is_some() || !extensions::all_ready(&state.extensions, state.turns))
        };
        let mut state = self.wait_while(self.lock(), |state| waits(state));
        if let Some(ended) = &state.ended {
            return Err(ended.clone());
        }
        // A copy that was not told of its restore, or the original after its checkpoint.
        self.release(&mut state);
        let (answer, parts) = sync_channel(PARTS);
        state.turns += 1;
        let event = Arc::new(event);
        state.event = Some(Arc::clone(&event));
        state.turn = Some(CurrentInvocation {
            event,
            is_taken: false,
            answer: Some(answer),
        });
        self.notify();
        Ok(parts)
    }

    /// Ends the turn: its answer is written, or nobody waits for it any more.
    pub(crate) fn end_turn(&self) {
        let mut state = self.lock();
        if let Some(turn) = state.turn.take() {
            state.last.clone_from(&turn.event.id);
        }
        self.notify();
    }

    // What the runtime does.

    /// Waits for the next event. One that was taken and not answered is given again, but not while its answer comes.
    /// The answer has a connection of its own, which this call may overtake: AWS's client for Node.js does not wait
    /// for the end of a stream that has failed.
    pub(crate) fn next(&self) -> Result<Arc<Event>, Refusal> {
        let mut state = self.lock();
        if state.stage == Stage::Running {
            let is_running = |state: &mut State| state.stage == Stage::Running;
            let waited = self.changed.wait_timeout_while(state, OVERTAKEN, is_running);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let mut state = self.wait_while(state, |state| state.stage == Stage::Responding);
        match state.stage {
            Stage::Started | Stage::Restoring | Stage::ResponseSent => state.stage = Stage::Ready,
            Stage::Ready | Stage::Running => {}
            _ => return state.invalid("Ready"),
        }
        self.notify();
        loop {
            let stage = state.stage;
            if let Some(turn) = &mut state.turn
                && (!turn.is_taken || stage == Stage::Running)
            {
                turn.is_taken = true;
                let event = Arc::clone(&turn.event);
                state.stage = Stage::Running;
                self.notify();
                return Ok(event);
            }
            state = self.wait(state);
        }
    }

    /// Waits for the restore.
    pub(crate) fn restore_next(&self) -> Result<(), Refusal> {
        let mut state = self.lock();
        match state.stage {
            Stage::Started => state.stage = Stage::RestoreReady,
            // Its connection was lost.
            Stage::RestoreReady => {}
            _ => return state.invalid("Ready"),
        }
        self.notify();
        drop(self.wait_while(state, |state| state.stage == Stage::RestoreReady));
        Ok(())
    }

    pub(crate) fn init_error(&self) -> Result<(), Refusal> {
        let mut state = self.lock();
        match state.stage {
            Stage::Started => state.stage = Stage::InitError,
            // Runtimes report errors of their hooks there, too.
            Stage::Restoring => state.stage = Stage::RestoreError,
            _ => return state.invalid("InitError"),
        }
        self.notify();
        Ok(())
    }

    pub(crate) fn restore_error(&self, body: Vec<u8>) -> Result<(), Refusal> {
        let mut state = self.lock();
        if state.stage != Stage::Restoring {
            return state.invalid("RuntimeRestoreErrorState");
        }
        state.stage = Stage::RestoreError;
        state.restore_error = Some(body);
        self.notify();
        Ok(())
    }

    /// Begins the answer to the invocation `id`. [`Self::responded`] has to follow.
    pub(crate) fn respond(&self, id: &str, to: &str) -> Result<SyncSender<ResponsePart>, Refusal> {
        let mut state = self.lock();
        let is_current = match &state.turn {
            Some(turn) if turn.is_taken => turn.event.id == id,
            _ => state.stage == Stage::ResponseSent && state.last == id,
        };
        if !is_current {
            return Err(Refusal::InvalidRequestId);
        }
        // Where an answer is repeated, the next turn may have begun.
        let is_running = state.stage == Stage::Running;
        let turn = state.turn.as_mut().filter(|_| is_running);
        match turn.and_then(|turn| turn.answer.take()) {
            Some(answer) => {
                state.stage = Stage::Responding;
                Ok(answer)
            }
            None => state.invalid(to),
        }
    }

    pub(crate) fn responded(&self) {
        self.lock().stage = Stage::ResponseSent;
        self.notify();
    }

    // What processes do.

    /// Says that a process has ended, and waits until nobody waits for an answer. Who called ends this process then.
    pub(crate) fn end(&self, ended: ExitReason) {
        let mut state = self.lock();
        let first = state.ended.get_or_insert(ended).clone();
        let turn = state.turn.as_mut();
        let answer = turn.and_then(|turn| Some((turn.answer.take()?, turn.event.id.clone())));
        if let Some((answer, id)) = answer {
            // The channel is empty, so that this does not wait.
            let _gone = answer.send(ResponsePart::Failed(first.failure(&id)));
        }
        self.notify();
        drop(self.wait_while(state, |state| state.turn.is_some()));
    }
}

impl ExitReason {
    pub(crate) fn body(&self, id: &str) -> Vec<u8> {
        let of = if id.is_empty() {
            String::new()
        } else {
            format!("RequestId: {id} ")
        };
        crate::error_body(self.kind, &format!("{of}Error: {}", self.message))
    }

    pub(crate) fn failure(&self, id: &str) -> Failure {
        Failure {
            is_function_s: false,
            content_type: "application/json".to_owned(),
            body: self.body(id),
        }
    }
}

#[cfg(test)]
mod tests;

//! The workers' interface: appends calls, and receives calls to be sent.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot, watch};

use super::body_memory::{BodyBudget, BodyMemory};
use super::call::StoredCall;
use super::outcome::{SendOutcome, SendReport};
use super::status::DeferredStatus;
use weir_policy::rules::deferral::Deferral;

/// Maximum number of queued requests to the store; further ones are rejected.
const MAX_QUEUED: usize = 4096;
/// Maximum number of calls that wait for a worker to take them.
const MAX_DISPATCHED: usize = 1024;
/// Maximum number of reports of one rule's calls that wait for its sender: two for each call in flight, with room to spare.
pub(super) const MAX_REPORTS: usize = 1024;
/// Pause before another attempt to hand a call to a worker, if there is none.
const NO_WORKER_PAUSE: Duration = Duration::from_millis(100);

/// A rule that defers calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeferredRule {
    pub name: Arc<str>,
    /// Its settings.
    pub deferral: Deferral,
    /// Whether it has more than one key, so that one key without room does not hold back the others.
    pub is_keyed: bool,
}

/// Why a call is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotStored {
    /// The store holds the maximum number of calls of the rule.
    Full,
    /// The store did not confirm the call in time.
    Unavailable,
}

#[derive(Debug)]
pub(super) enum StoreRequest {
    /// Appends an encoded call.
    Append(AppendRequest),
    /// Moves dead letters back: the one with this ID, or the oldest ones.
    Requeue { rule: Box<str>, id: Option<Box<str>> },
}

/// A request to append a call.
#[derive(Debug)]
pub(super) struct AppendRequest {
    /// Name of the rule that stores it.
    pub(super) rule: Box<str>,
    /// Its settings.
    pub(super) deferral: Deferral,
    /// The encoded call.
    pub(super) call: Vec<u8>,
    /// Memory of the encoded call; the client may disconnect before it is released.
    pub(super) memory: BodyMemory,
    /// Receives the result.
    pub(super) reply: oneshot::Sender<Result<(), NotStored>>,
}

/// A call that a worker is to send.
#[derive(Debug)]
pub struct Dispatch {
    /// Name of the rule that has stored the call.
    pub rule: Arc<str>,
    pub call: Arc<StoredCall>,
    /// Receives what happens to it.
    pub reporter: Reporter,
}

/// Reports what happens to a call. If it is dropped without a final report, the call counts as aborted.
#[derive(Debug)]
pub struct Reporter {
    number: u64,
    sender: mpsc::Sender<SendReport>,
    is_final: bool,
}

/// The interface.
#[derive(Clone, Debug)]
pub struct DeferredHandle(Arc<HandleState>);

#[derive(Debug)]
struct HandleState {
    requests: mpsc::Sender<StoreRequest>,
    /// Taken by the thread when it starts.
    receiver: Mutex<Option<mpsc::Receiver<StoreRequest>>>,
    rules: watch::Sender<Arc<[DeferredRule]>>,
    is_finishing: watch::Sender<bool>,
    buffered: Arc<BodyBudget>,
    workers: Mutex<Vec<mpsc::Sender<Dispatch>>>,
    next_worker: AtomicUsize,
    status: Mutex<DeferredStatus>,
}

impl Default for DeferredHandle {
    fn default() -> Self {
        let (requests, receiver) = mpsc::channel(MAX_QUEUED);
        Self(Arc::new(HandleState {
            requests,
            receiver: Mutex::new(Some(receiver)),
            rules: watch::Sender::new(Arc::default()),
            is_finishing: watch::Sender::new(false),
            buffered: Arc::default(),
            workers: Mutex::default(),
            next_worker: AtomicUsize::new(0),
            status: Mutex::default(),
        }))
    }
}

impl DeferredHandle {
    /// Appends an encoded call of a rule, whose bytes become part of its `memory`. When it returns `Ok`, the store has confirmed the call.
    ///
    /// # Errors
    /// Why the call is not stored. After [`NotStored::Unavailable`] it may be stored nevertheless, if the confirmation
    /// was lost.
    pub async fn append(
        &self,
        rule: &str,
        deferral: &Deferral,
        call: Vec<u8>,
        mut memory: BodyMemory,
    ) -> Result<(), NotStored> {
        if !memory.grow_to(call.len()) {
            return Err(NotStored::Unavailable);
        }
        let (reply, stored) = oneshot::channel();
        let (rule, deferral) = (rule.into(), deferral.clone());
        let request = StoreRequest::Append(AppendRequest { rule, deferral, call, memory, reply });
        self.0.requests.try_send(request).map_err(|_| NotStored::Unavailable)?;
        stored.await.unwrap_or(Err(NotStored::Unavailable))
    }

    /// Returns the memory of a call of a client, which grows while its body arrives.
    pub fn body_memory(&self, client: IpAddr) -> BodyMemory {
        BodyMemory::new(Arc::clone(&self.0.buffered), client)
    }

    /// Returns the calls that a worker is to send. Without any worker, nothing is sent.
    pub fn add_worker(&self) -> mpsc::Receiver<Dispatch> {
        let (sender, receiver) = mpsc::channel(MAX_DISPATCHED);
        self.0.workers.lock().push(sender);
        receiver
    }

    /// Sets the rules that defer calls.
    pub fn set_rules(&self, rules: Vec<DeferredRule>) {
        self.0.rules.send_if_modified(|current| {
            let is_new = **current != *rules;
            if is_new {
                *current = rules.into();
            }
            is_new
        });
    }

    /// Returns the state of the streams, as of the last refresh.
    pub fn status(&self) -> DeferredStatus {
        self.0.status.lock().clone()
    }

    /// Moves dead letters of a rule back to its calls: the one with this ID, or the oldest ones. Returns whether the
    /// request was accepted.
    pub fn requeue(&self, rule: &str, id: Option<&str>) -> bool {
        let request = StoreRequest::Requeue { rule: rule.into(), id: id.map(Box::from) };
        self.0.requests.try_send(request).is_ok()
    }

    /// Ends the thread once what is in flight is settled.
    pub fn finish(&self) {
        self.0.is_finishing.send_replace(true);
    }

    /// Returns the requests of the workers; `None` if the thread has been started already.
    pub fn take_requests(&self) -> Option<RequestQueue> {
        self.0.receiver.lock().take().map(RequestQueue)
    }

    pub(super) fn rules(&self) -> watch::Receiver<Arc<[DeferredRule]>> {
        let mut rules = self.0.rules.subscribe();
        rules.mark_changed();
        rules
    }

    pub(super) async fn wait_until_finishing(&self) {
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.0.is_finishing.subscribe().wait_for(|is_finishing| *is_finishing).await;
    }

    pub(super) fn set_status(&self, status: DeferredStatus) {
        *self.0.status.lock() = status;
    }

    /// Hands a call to the next worker that has room.
    pub(super) fn dispatch(&self, mut dispatch: Dispatch) {
        let mut workers = self.0.workers.lock();
        // Workers that have ended.
        workers.retain(|worker| !worker.is_closed());
        for _ in 0..workers.len() {
            let next = self.0.next_worker.fetch_add(1, Ordering::Relaxed) % workers.len();
            match workers[next].try_send(dispatch) {
                Ok(()) => return,
                Err(TrySendError::Full(unsent) | TrySendError::Closed(unsent)) => dispatch = unsent,
            }
        }
        dispatch.reporter.finish(SendOutcome::NoRoom(NO_WORKER_PAUSE));
    }
}

/// Requests of the workers to the store.
#[derive(Debug)]
pub struct RequestQueue(pub(super) mpsc::Receiver<StoreRequest>);

impl Reporter {
    pub(super) const fn new(number: u64, sender: mpsc::Sender<SendReport>) -> Self {
        Self { number, sender, is_final: false }
    }

    /// Reports that the limit has room and the call is being sent.
    pub fn admitted(&self) {
        self.send(SendOutcome::Admitted);
    }

    /// Reports how it has ended.
    pub fn finish(mut self, outcome: SendOutcome) {
        self.is_final = true;
        self.send(outcome);
    }

    fn send(&self, outcome: SendOutcome) {
        // The rule's sender may have ended; the store still has the call.
        let _ = self.sender.try_send(SendReport { number: self.number, outcome });
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        if !self.is_final {
            self.send(SendOutcome::Aborted);
        }
    }
}

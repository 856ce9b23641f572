//! The new process: takes over from the one that has started it.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::channel::{Channel, MessageKind, has_ended};
use super::state::{Hello, Learned, Prepared};
use super::{VARIABLE, VERSION};
use crate::app::{AppError, RunningApp, thread};
use crate::proxy::{ArrivedConnection, ProxyState, WorkerUpdate};
use weir_limiter::Limiter;
use weir_limiter::timestamp::Timestamp;
use weir_limiter::transfer::{AbsorbedCounters, LateChargeMessage, TransferredHold};
use weir_net::drain::{Closing, DrainManager};
use weir_net::fd_channel::ConnectionReceiver;
use weir_net::listener::taken_over::TakenSockets;
use weir_store::state_file::frames;

/// Timeout of each message. The old process copies millions of counters in less.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The process that this one replaces.
pub(in crate::app) struct Predecessor {
    channel: Channel,
    connections: ConnectionReceiver,
    /// Its counters when it has started this process.
    counters: Vec<u8>,
}

/// The way to tell the process that was replaced that this one ends.
#[derive(Default)]
pub(in crate::app) struct EndNotice(Option<Channel>);

/// What was taken over at the last moment.
pub(in crate::app) struct TakenOver {
    channel: Channel,
    connections: ConnectionReceiver,
    /// `None` if the old process has ended before.
    absorbed: Option<AbsorbedCounters>,
}

impl Predecessor {
    /// Returns the process that has started this one to be replaced, with its listening sockets; `None` if there is none, or
    /// it has ended already.
    ///
    /// # Errors
    /// If it cannot be replaced by this one.
    pub(in crate::app) fn from_environment() -> Result<Option<(Self, TakenSockets)>, AppError> {
        if std::env::var_os(VARIABLE).is_none() {
            return Ok(None);
        }
        match Self::greet() {
            Ok(predecessor) => Ok(Some(predecessor)),
            Err(error) if has_ended(&error) => {
                tracing::warn!("the process to be replaced has ended: starting without its counters");
                Ok(None)
            }
            Err(error) => Err(cannot_take_over(error)),
        }
    }

    fn greet() -> io::Result<(Self, TakenSockets)> {
        let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        let mut channel = Channel::new(socket)?;
        let hello = channel.expect(MessageKind::Hello, TIMEOUT)?;
        let Hello { version, sockets } = serde_json::from_slice(&hello)?;
        if version != VERSION {
            let problem = format!("unsupported version of its messages, expected {VERSION}, got {version}");
            return Err(io::Error::other(problem));
        }
        while channel.descriptors.len() <= sockets.len() {
            channel.expect(MessageKind::Descriptors, TIMEOUT)?;
        }
        let counters = channel.expect(MessageKind::Counters, TIMEOUT)?;
        let mut descriptors = std::mem::take(&mut channel.descriptors).into_iter();
        let connections: Option<OwnedFd> = descriptors.next();
        let connections = connections.ok_or(io::ErrorKind::InvalidData)?.into();
        Ok((Self { channel, connections, counters }, TakenSockets::new(sockets.into_iter().zip(descriptors))))
    }

    /// Restores a limiter with the counters that the old process had at the beginning.
    ///
    /// # Errors
    /// If they cannot be read.
    pub(in crate::app) fn restore(&mut self, max_keys: usize, now: Timestamp) -> Result<Limiter, AppError> {
        let counters = std::mem::take(&mut self.counters);
        let restored = frames::read(&*counters, max_keys, now);
        restored.map(|restored| restored.limiter).map_err(|error| cannot_take_over(io::Error::other(error)))
    }

    /// Takes over the counters as they are now. From here on the old process decides nothing.
    ///
    /// # Errors
    /// If they cannot be taken over, although the old process goes on.
    pub(in crate::app) fn take_over(mut self, running: &RunningApp) -> Result<TakenOver, AppError> {
        let absorbed = match self.absorb(running) {
            Ok(absorbed) => {
                running.shared.replacement.set_predecessor(true);
                Some(absorbed)
            }
            Err(error) if has_ended(&error) => {
                tracing::warn!(
                    %error,
                    "the process to be replaced has ended early: its counters are those of this process's start"
                );
                None
            }
            Err(error) => return Err(cannot_take_over(error)),
        };
        Ok(TakenOver { channel: self.channel, connections: self.connections, absorbed })
    }

    fn absorb(&mut self, running: &RunningApp) -> io::Result<AbsorbedCounters> {
        let prepared = Prepared {
            listeners: running.sockets.listeners.names(),
            purposes: running.sockets.export()?.into_iter().map(|(socket, _)| socket.purpose).collect(),
        };
        self.channel.send(MessageKind::Prepared, &serde_json::to_vec(&prepared)?)?;
        let limiter = &running.shared.limiter;
        let counters = self.channel.expect(MessageKind::Counters, TIMEOUT)?;
        let holds = self.channel.expect(MessageKind::Holds, TIMEOUT)?;
        let learned = self.channel.expect(MessageKind::Learned, TIMEOUT)?;
        // Everything that may fail comes first.
        let now = running.shared.clock.now();
        let restored = frames::read(&*counters, limiter.max_keys(), now).map_err(io::Error::other)?.limiter;
        let holds = TransferredHold::all_from_bytes(&holds).ok_or(io::ErrorKind::InvalidData)?;
        let learned: Learned = serde_json::from_slice(&learned)?;
        let absorbed = limiter.absorb(&restored, &holds, now);
        learned.apply(running);
        tracing::info!(counters = absorbed.counters, "took over from the running process");
        Ok(absorbed)
    }
}

fn cannot_take_over(error: io::Error) -> AppError {
    AppError::System("cannot replace the running process".to_owned(), error)
}

impl TakenOver {
    /// Reports that this process serves, and goes on with the connections and charges of the old one. Nothing may be decided
    /// before: until then the old process may go on.
    pub(in crate::app) fn serve(self, running: &RunningApp) -> Result<EndNotice, AppError> {
        let Self { mut channel, connections, absorbed } = self;
        // Fails only if the old process has ended.
        let _ = channel.send(MessageKind::Serving, &[]);
        running.sockets.claim_files();
        let workers = running.sockets.listeners.workers();
        thread::start("connections", move || receive_connections(&connections, &workers))?;
        let Some(absorbed) = absorbed else { return Ok(EndNotice(None)) };
        let notice = channel.try_clone().map_err(cannot_take_over)?;
        let shared = Arc::clone(&running.shared);
        thread::start("late", move || apply_late_charges(channel, absorbed, &shared))?;
        Ok(EndNotice(Some(notice)))
    }
}

impl EndNotice {
    /// Tells the process that was replaced once listeners close here: it still has them, in case that this process fails.
    /// `has_failed` returns whether this is such a failure.
    pub(in crate::app) async fn send_when_draining(
        mut self,
        drain: &DrainManager,
        has_failed: impl Fn() -> bool,
    ) {
        if drain.wait_for_closing().await == Closing::Close
            && !has_failed()
            && let Some(channel) = &mut self.0
        {
            // Fails only if the other process has ended.
            let _ = channel.send(MessageKind::Ending, &[]);
        }
        std::future::pending().await
    }
}

/// Passes the connections of the old process on to the workers, in turn, until it has ended.
fn receive_connections(connections: &ConnectionReceiver, workers: &[mpsc::Sender<WorkerUpdate>]) {
    let mut message = Vec::new();
    let mut next = workers.iter().cycle();
    loop {
        let arrived = match connections.receive(&mut message) {
            Ok(Some(socket)) => ArrivedConnection::new(&message, socket),
            Ok(None) => return,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // Only its own message is lost, not the channel.
            Err(error) => Err(error),
        };
        match (arrived, next.next()) {
            (Ok(arrived), Some(worker)) => {
                // Fails only if the worker has ended, and with it the process.
                let _ = worker.blocking_send(WorkerUpdate::Connection(Box::new(arrived)));
            }
            (Err(error), _) => tracing::warn!(%error, "cannot take over a connection of the old process"),
            (Ok(_), None) => return,
        }
    }
}

/// Takes over a stored response, whose body follows `head`.
fn adopt_response(channel: &mut Channel, head: &[u8], shared: &ProxyState) -> io::Result<()> {
    let body = channel.expect(MessageKind::Body, TIMEOUT)?;
    let fallbacks = Arc::clone(&shared.generation.load().fallbacks);
    // A rule that no longer stores it is no problem.
    fallbacks.adopt(serde_json::from_slice(head)?, body.into(), shared.clock.now());
    Ok(())
}

/// Applies what requests in flight in the old process charge, until that has ended.
fn apply_late_charges(mut channel: Channel, mut absorbed: AbsorbedCounters, shared: &ProxyState) {
    let (limiter, clock) = (&shared.limiter, &shared.clock);
    loop {
        match channel.next() {
            Ok(Some((MessageKind::Stored, head))) => {
                if let Err(error) = adopt_response(&mut channel, &head, shared) {
                    tracing::warn!(%error, "cannot take over a stored response");
                }
            }
            Ok(Some((MessageKind::Late, charge))) => match LateChargeMessage::from_bytes(&charge) {
                Some(charge) => absorbed.apply(limiter, &charge, clock.now()),
                None => tracing::warn!("ignored an invalid charge of the old process"),
            },
            Ok(None) => break,
            Ok(Some((kind, _))) => tracing::warn!(?kind, "ignored a message of the old process"),
            Err(error) => {
                tracing::warn!(%error, "lost the old process");
                break;
            }
        }
    }
    absorbed.release_all(limiter);
    tracing::info!("the old process has ended");
    shared.replacement.set_predecessor(false);
}

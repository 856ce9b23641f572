//! The moment at which decisions move from the old process to the new one.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::time::Duration;

use tokio::sync::mpsc::Sender;

use super::super::channel::{Channel, MessageKind};
use super::super::state::{Learned, Prepared};
use super::{Replacer, this_process_ends};
use crate::proxy::WorkerUpdate;
use weir_limiter::saved::SaveError;
use weir_limiter::transfer::{LateChargeMessage, TransferredHold};
use weir_net::fd_channel::ConnectionSender;
use weir_net::replacement::{ReplacementPhase, Successor};
use weir_store::state_file::frames;

/// Time for the new process to load its configuration, with its databases and address lists.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(120);
/// Time for the new process to take over the counters. Requests wait meanwhile.
const SERVE_TIMEOUT: Duration = Duration::from_secs(15);
/// Time for clients over HTTP/2 to learn that their connections end.
const ENDING_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for a worker to notice a phase.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(5);

impl Replacer {
    /// Hands over to the new process, once that is prepared. Returns what is charged late, and what the new process listens for.
    pub(super) fn hand_over(
        &self,
        channel: &mut Channel,
        sender: ConnectionSender,
    ) -> io::Result<(Receiver<LateChargeMessage>, Vec<Box<str>>)> {
        let shared = &self.running.shared;
        let mut counters = Vec::new();
        save(&mut counters, |out| frames::write(out, &shared.limiter, shared.clock.now()).map(drop))?;
        channel.send(MessageKind::Counters, &counters)?;
        let prepared = channel.expect(MessageKind::Prepared, PREPARE_TIMEOUT)?;
        let Prepared { listeners, purposes } = serde_json::from_slice(&prepared)?;
        if !self.relay.takes_over() {
            return Err(this_process_ends());
        }
        let was_replaced = self.is_replaced();
        match self.move_counters(channel) {
            Ok(late) => {
                let successor = Successor { sender, listeners: listeners.into() };
                shared.replacement.set_successor(Some(Arc::new(successor)));
                Ok((late, purposes))
            }
            Err(error) if was_replaced => Err(error),
            Err(error) => {
                shared.limiter.end_transfer();
                self.set_phase(ReplacementPhase::Serving);
                Err(error)
            }
        }
    }

    /// Lets no request be decided here, and passes the counters to the new process, until that serves.
    fn move_counters(&self, channel: &mut Channel) -> io::Result<Receiver<LateChargeMessage>> {
        let shared = &self.running.shared;
        if !self.is_replaced() {
            self.end_http2();
            if !self.set_phase(ReplacementPhase::Frozen) {
                return Err(io::Error::other("a worker has not stopped deciding in time"));
            }
        }
        let (late_sender, late) = mpsc::channel();
        let (mut counters, mut holds) = (Vec::new(), Vec::new());
        save(&mut counters, |out| {
            holds = frames::transfer(out, &shared.limiter, late_sender.clone(), shared.clock.now())?;
            Ok(())
        })?;
        channel.send(MessageKind::Counters, &counters)?;
        channel.send(MessageKind::Holds, &TransferredHold::all_to_bytes(&holds))?;
        channel.send(MessageKind::Learned, &serde_json::to_vec(&Learned::of(&self.running))?)?;
        channel.expect(MessageKind::Serving, SERVE_TIMEOUT)?;
        Ok(late)
    }

    /// Ends connections over HTTP/2, so that no stream arrives when nothing may be decided.
    fn end_http2(&self) {
        // Twice: after the first time, the connections have yet to be woken.
        self.set_phase(ReplacementPhase::Ending);
        self.set_phase(ReplacementPhase::Ending);
        self.running.shared.replacement.wait_for_endings(ENDING_TIMEOUT);
    }

    /// Changes the phase, and returns whether all workers have noticed.
    pub(super) fn set_phase(&self, phase: ReplacementPhase) -> bool {
        self.running.shared.replacement.set_phase(phase);
        let (noticed, waiting) = mpsc::sync_channel(0);
        for worker in &self.running.sockets.listeners.workers() {
            send_notice(worker, noticed.clone());
        }
        drop(noticed);
        // Nothing is sent: the last worker drops the sender.
        waiting.recv_timeout(NOTICE_TIMEOUT) == Err(RecvTimeoutError::Disconnected)
    }
}

fn send_notice(worker: &Sender<WorkerUpdate>, noticed: SyncSender<()>) {
    // Fails only if the worker has ended, and decides nothing.
    let _ = worker.blocking_send(WorkerUpdate::Replacement(noticed));
}

/// Writes counters with `write` until no reload comes between.
fn save(
    out: &mut Vec<u8>,
    mut write: impl FnMut(&mut Vec<u8>) -> Result<(), SaveError<io::Error>>,
) -> io::Result<()> {
    loop {
        out.clear();
        match write(out) {
            Ok(()) => return Ok(()),
            Err(SaveError::Changed) => {}
            Err(SaveError::Write(error)) => return Err(error),
        }
    }
}

//! The old process: starts the new one and hands over to it.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel, sync_channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::mpsc::Sender;

use super::channel::{Channel, MessageKind};
use super::state::{Hello, Learned, Prepared};
use super::{VARIABLE, VERSION};
use crate::app::{RunningApp, service_manager};
use crate::proxy::WorkerUpdate;
use weir_limiter::saved::SaveError;
use weir_limiter::transfer::LateChargeMessage;
use weir_net::fd_channel::{ConnectionSender, connection_channel};
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
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Interval at which the old process looks whether the new one still runs.
const LATE_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum processes that are started because the new one has ended at once.
const MAX_RESTARTS: u32 = 3;
/// The file of the running binary, even if another lies at its path by now.
const OWN_BINARY: &str = "/proc/self/exe";

/// Replaces this process when it is asked to.
pub(in crate::app) struct Replacer {
    running: Arc<RunningApp>,
    /// Path of the binary when the process has started.
    program: Option<PathBuf>,
    is_active: AtomicBool,
    /// Whether the process ends, so that no further charge comes late.
    is_finished: AtomicBool,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

/// A new process that serves.
struct Serving {
    child: Child,
    channel: Channel,
    late: Receiver<LateChargeMessage>,
}

impl Replacer {
    pub(in crate::app) fn new(running: &Arc<RunningApp>) -> Arc<Self> {
        Arc::new(Self {
            running: Arc::clone(running),
            program: std::env::current_exe().ok(),
            is_active: AtomicBool::new(false),
            is_finished: AtomicBool::new(false),
            thread: Mutex::default(),
        })
    }

    /// Starts the binary that lies at this process's path, and hands over to it, on a thread of its own.
    pub(in crate::app) fn start(self: &Arc<Self>) {
        if std::process::id() == 1 {
            tracing::error!(
                "this process is not replaced: it is process 1 of a container, which would end with it"
            );
            return;
        }
        let Some(program) = self.program.clone() else {
            tracing::error!("this process is not replaced: the path of its binary is not known");
            return;
        };
        if self.is_active.swap(true, Ordering::Relaxed) {
            tracing::warn!("this process is being replaced already");
            return;
        }
        let replacer = Arc::clone(self);
        let started =
            std::thread::Builder::new().name("replacement".to_owned()).spawn(move || {
                match replacer.replace(&program) {
                    Ok(serving) => replacer.follow(serving),
                    Err(error) => {
                        tracing::error!(%error, "this process is not replaced, and goes on");
                        replacer.is_active.store(false, Ordering::Relaxed);
                    }
                }
            });
        match started {
            Ok(thread) => *self.thread.lock() = Some(thread),
            Err(error) => {
                tracing::error!(%error, "this process is not replaced: cannot start a thread");
                self.is_active.store(false, Ordering::Relaxed);
            }
        }
    }

    /// Passes the last charges on. No request may be in flight.
    pub(in crate::app) fn finish(&self) {
        self.is_finished.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.lock().take().filter(|_| self.is_replaced()) {
            let _ = thread.join();
        }
    }

    fn is_replaced(&self) -> bool {
        self.running.shared.replacement.phase() == ReplacementPhase::Replaced
    }

    /// Starts `program` and hands over to it. If that fails, this process goes on.
    fn replace(&self, program: &Path) -> io::Result<Serving> {
        tracing::info!(program = %program.display(), "starting the process that replaces this one");
        let (mut child, mut channel, sender) = self.spawn(program)?;
        let handed_over = self.hand_over(&mut channel, sender);
        match handed_over {
            Ok(late) => Ok(Serving { child, channel, late }),
            Err(error) => {
                let _ = child.kill();
                let status = child.wait()?;
                match error.kind() {
                    io::ErrorKind::UnexpectedEof
                    | io::ErrorKind::BrokenPipe
                    | io::ErrorKind::ConnectionReset => {
                        Err(io::Error::other(format!("the new process has ended: {status}")))
                    }
                    io::ErrorKind::TimedOut => Err(io::Error::other("the new process does not get ready")),
                    _ => Err(error),
                }
            }
        }
    }

    fn spawn(&self, program: &Path) -> io::Result<(Child, Channel, ConnectionSender)> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut arguments = std::env::args_os();
        let mut command = Command::new(program);
        command.arg0(arguments.next().unwrap_or_else(|| program.into())).args(arguments);
        command.stdin(Stdio::from(OwnedFd::from(theirs))).env(VARIABLE, "1");
        // These name this process.
        ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "WATCHDOG_PID"].iter().for_each(|name| {
            command.env_remove(name);
        });
        let sockets = self.running.sockets.export()?;
        let child = command.spawn()?;
        let (sender, receiver) = connection_channel()?;
        let mut channel = Channel::new(ours);
        let (descriptions, descriptors): (Vec<_>, Vec<_>) = sockets.into_iter().unzip();
        let hello = Hello { version: VERSION, sockets: descriptions };
        channel.send(MessageKind::Hello, &serde_json::to_vec(&hello)?)?;
        let descriptors: Vec<_> = std::iter::once(receiver.as_fd())
            .chain(descriptors.iter().map(|socket| socket.as_fd()))
            .collect();
        channel.send_descriptors(&descriptors)?;
        Ok((child, channel, sender))
    }

    /// Hands over to the new process, once that is prepared. Returns what is charged late.
    fn hand_over(
        &self,
        channel: &mut Channel,
        sender: ConnectionSender,
    ) -> io::Result<Receiver<LateChargeMessage>> {
        let shared = &self.running.shared;
        let mut counters = Vec::new();
        save(&mut counters, |out| frames::write(out, &shared.limiter, shared.clock.now()).map(drop))?;
        channel.send(MessageKind::Counters, &counters)?;
        let prepared = channel.expect(MessageKind::Prepared, PREPARE_TIMEOUT)?;
        let Prepared { listeners } = serde_json::from_slice(&prepared)?;
        let was_replaced = self.is_replaced();
        match self.move_counters(channel) {
            Ok(late) => {
                let successor = Successor { sender, listeners: listeners.into() };
                shared.replacement.set_successor(Some(Arc::new(successor)));
                Ok(late)
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
        let (late_sender, late) = channel_of_late_charges();
        let (mut counters, mut holds) = (Vec::new(), Vec::new());
        save(&mut counters, |out| {
            holds = frames::transfer(out, &shared.limiter, late_sender.clone(), shared.clock.now())?;
            Ok(())
        })?;
        channel.send(MessageKind::Counters, &counters)?;
        channel.send(MessageKind::Holds, &weir_limiter::transfer::TransferredHold::all_to_bytes(&holds))?;
        channel.send(MessageKind::Learned, &serde_json::to_vec(&Learned::of(&self.running))?)?;
        channel.expect(MessageKind::Serving, SERVE_TIMEOUT)?;
        Ok(late)
    }

    /// Ends connections over HTTP/2, so that no stream arrives when nothing may be decided.
    fn end_http2(&self) {
        // Twice: after the first time, the connections have yet to be woken.
        self.set_phase(ReplacementPhase::Ending);
        self.set_phase(ReplacementPhase::Ending);
        let started = Instant::now();
        let replacement = &self.running.shared.replacement;
        while replacement.ending_connections() > 0 && started.elapsed() < ENDING_TIMEOUT {
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Changes the phase, and returns whether all workers have noticed.
    fn set_phase(&self, phase: ReplacementPhase) -> bool {
        self.running.shared.replacement.set_phase(phase);
        let (noticed, waiting) = sync_channel(0);
        for worker in &self.running.sockets.listeners.workers() {
            send_notice(worker, noticed.clone());
        }
        drop(noticed);
        // Nothing is sent: the last worker drops the sender.
        waiting.recv_timeout(NOTICE_TIMEOUT) == Err(RecvTimeoutError::Disconnected)
    }

    /// Ends this process in order, and passes on what its requests still charge. If the new process ends before, starts
    /// another one from the binary of this process.
    fn follow(&self, mut serving: Serving) {
        self.leave(&serving.child);
        let mut restarts = 0;
        while let Err(error) = self.pass_on(&mut serving) {
            let status = serving.child.wait().map(|status| status.to_string()).unwrap_or_default();
            tracing::error!(%error, status, "the new process has ended: starting another from the binary of this one");
            restarts += 1;
            serving = match self.replace(Path::new(OWN_BINARY)) {
                Ok(next) if restarts <= MAX_RESTARTS => next,
                Ok(_) => return,
                Err(error) if restarts < MAX_RESTARTS => {
                    tracing::error!(%error, "cannot start another process, trying again");
                    continue;
                }
                Err(error) => {
                    tracing::error!(%error, "no process accepts connections any longer");
                    return;
                }
            };
            service_manager::replaced_by(serving.child.id());
        }
    }

    fn leave(&self, child: &Child) {
        let running = &self.running;
        service_manager::replaced_by(child.id());
        running.sockets.leave();
        running.state_saver.iter().for_each(|saver| saver.hand_over());
        self.set_phase(ReplacementPhase::Replaced);
        running.reload.stop();
        running.shared.drain.replace();
        tracing::info!(process = child.id(), "replaced by another process: draining");
    }

    /// Passes late charges on until this process ends.
    ///
    /// # Errors
    /// If the new process has ended.
    fn pass_on(&self, serving: &mut Serving) -> io::Result<()> {
        loop {
            match serving.late.recv_timeout(LATE_INTERVAL) {
                Ok(charge) => serving.channel.send(MessageKind::Late, &charge.to_bytes())?,
                Err(_) if self.is_finished.load(Ordering::Relaxed) => return Ok(()),
                Err(_) => {
                    if let Some(status) = serving.child.try_wait()? {
                        return Err(io::Error::other(status.to_string()));
                    }
                }
            }
        }
    }
}

fn channel_of_late_charges() -> (std::sync::mpsc::Sender<LateChargeMessage>, Receiver<LateChargeMessage>) {
    channel()
}

fn send_notice(worker: &Sender<WorkerUpdate>, noticed: std::sync::mpsc::SyncSender<()>) {
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

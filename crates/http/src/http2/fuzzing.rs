//! Fuzz targets for both sides of a connection.
//!
//! The peer is arbitrary input: bytes, or frames built from it. A model of the peer reads the output as frames and
//! compares windows, table and states of streams with those of the connection. See [`peer`] for what it checks.

mod client;
mod peer;
mod script;
mod server;
mod wire;

use std::cell::RefMut;
use std::rc::Rc;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use self::peer::Peer;
use self::script::{Step, steps};
use self::wire::Wire;
use super::error::Http2Error;
use super::head::AcceptedOrigins;
use super::settings::Http2Settings;
use super::shared::Http2State;
use super::stream::Stream;

pub use self::client::http2_client;
pub use self::server::http2_server;

const SETTINGS: Http2Settings = Http2Settings {
    max_streams: 8,
    max_header_list: 8 * 1024,
    stream_window: 20_000,
    max_stream_window: 65_535,
    shared_window: 100_000,
    connect_protocol: true,
    origins: AcceptedOrigins::Uri,
    max_premature_resets: 20,
    max_error_resets: 20,
};
/// Turns of the connection's task for one step. It asks for another turn only after many requests.
const MAX_TURNS: usize = 64;

/// A side of a connection with the tasks that use its streams.
trait Side {
    /// Runs the connection's task.
    fn poll_connection(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Http2Error>>;

    /// Runs the tasks of all streams. `plan` determines what is begun.
    fn act(&mut self, plan: Option<u8>, cx: &mut Context<'_>);

    /// State of the connection.
    fn state(&self) -> RefMut<'_, Http2State>;

    /// Returns streams with handles.
    fn held(&self) -> Vec<Rc<Stream>>;

    fn drop_streams(&mut self);
}

/// Whether the connection's task was woken.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A session of one side.
struct Session<S> {
    side: S,
    wire: Wire,
    peer: Peer,
    has_ended: bool,
}

impl<S: Side> Session<S> {
    fn new(side: S, wire: Wire, is_server: bool) -> Self {
        Self { side, wire, peer: Peer::new(is_server), has_ended: false }
    }

    /// Plays `data`.
    fn run(&mut self, data: &[u8]) {
        for step in steps(data) {
            let mut plan = None;
            match step {
                Step::Receive(bytes) => self.receive(&bytes),
                Step::Writable(budget) => self.wire.limit_output(budget),
                Step::Act(chosen) => plan = Some(chosen),
            }
            self.turn(plan);
            if self.has_ended {
                break;
            }
        }
        self.finish();
    }

    fn receive(&mut self, bytes: &[u8]) {
        self.peer.connection_receives(bytes);
        self.wire.receive(bytes);
    }

    /// Runs all tasks until the connection waits for its peer.
    fn turn(&mut self, plan: Option<u8>) {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut cx = Context::from_waker(&waker);
        for turn in 0.. {
            assert!(turn < MAX_TURNS, "the connection's task never waits");
            woken.0.store(false, Ordering::Relaxed);
            self.has_ended |= !self.has_ended && self.side.poll_connection(&mut cx).is_ready();
            self.side.act(plan.filter(|_| turn == 0), &mut Context::from_waker(Waker::noop()));
            self.peer.connection_sends(&self.wire.take_output());
            self.check();
            if self.has_ended || !woken.0.load(Ordering::Relaxed) {
                return;
            }
        }
    }

    fn check(&mut self) {
        let held = self.side.held();
        let state = self.side.state();
        self.peer.check_bounds(&state);
        if state.end.is_none() {
            self.peer.check_receive_windows(&state, &held);
            if self.wire.is_idle() && state.output.len() == 0 {
                self.peer.check_send_windows(&state);
            }
        }
    }

    /// Ends the input. Everything that streams have received is then given back.
    fn finish(&mut self) {
        self.wire.limit_output(None);
        self.turn(None);
        if !self.has_ended {
            self.side.drop_streams();
            self.turn(None);
            assert!(self.side.state().streams.is_empty(), "streams without handles are left");
        }
        self.wire.end();
        self.turn(None);
        assert!(self.has_ended, "the connection outlives its peer");
        assert!(self.side.state().streams.is_empty(), "streams outlive their connection");
    }
}

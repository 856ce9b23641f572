//! Test server of one document, whose behaviour a test controls.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use serde_json::json;

use crate::support::origin::Turn;
use crate::support::{Origin, Then, wait};

/// Behaviour of the server.
#[derive(Clone, Debug)]
pub(super) enum Manner {
    /// Holds requests until the document changes, as Central Dogma does.
    Holding,
    /// Ignores `Prefer`, as a plain web server does.
    Plain,
    /// Sends these bytes and closes the connection, whatever the request.
    Saying(Vec<u8>),
    /// Sends the document in the envelope of Central Dogma, and holds requests.
    Dogma,
}

#[derive(Debug)]
struct State {
    manner: Manner,
    text: String,
    revision: u64,
    held: usize,
}

type Shared = Arc<(Mutex<State>, Condvar)>;

/// The test server.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) origin: Origin,
    state: Shared,
}

impl Server {
    pub(super) fn start(manner: Manner, text: &str) -> Self {
        let state = State { manner, text: text.to_owned(), revision: 1, held: 0 };
        let state: Shared = Arc::new((Mutex::new(state), Condvar::new()));
        let serving = Arc::clone(&state);
        let origin = Origin::start(move |turn| respond(turn, &serving));
        Self { origin, state }
    }

    pub(super) fn holding(text: &str) -> Self {
        Self::start(Manner::Holding, text)
    }

    pub(super) fn plain(text: &str) -> Self {
        Self::start(Manner::Plain, text)
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.origin.address()
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/weir.yaml", self.address())
    }

    /// Replaces the document.
    pub(super) fn publish(&self, text: &str) {
        self.change(|state| {
            text.clone_into(&mut state.text);
            state.revision += 1;
        });
    }

    /// Replaces the behaviour.
    pub(super) fn behave(&self, manner: Manner) {
        self.change(|state| state.manner = manner);
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.0.lock().unwrap());
        self.state.1.notify_all();
    }

    /// Waits until the server holds a request.
    pub(super) fn until_held(&self) {
        self.until_so_many_held(1);
    }

    pub(super) fn until_so_many_held(&self, requests: usize) {
        wait::until_true("a request that is held", || self.state.0.lock().unwrap().held >= requests);
    }

    /// Returns the values of this header in all requests so far.
    pub(super) fn asked_with(&self, field: &str) -> Vec<Option<String>> {
        self.origin.seen().iter().map(|seen| seen.head.get(field).map(ToOwned::to_owned)).collect()
    }
}

fn respond(turn: &mut Turn<'_>, (state, changed): &(Mutex<State>, Condvar)) -> io::Result<Then> {
    let known = turn.head.get("if-none-match").map(ToOwned::to_owned);
    let wait = turn.head.get("prefer").and_then(|prefer| prefer.strip_prefix("wait=")?.parse().ok());
    let mut state = state.lock().unwrap();
    let is_known = |state: &State| known.as_ref() == Some(&format!("\"{}\"", state.revision));
    if let (Manner::Holding | Manner::Dogma, Some(wait)) = (&state.manner, wait) {
        state.held += 1;
        let until =
            |state: &mut State| is_known(state) && matches!(state.manner, Manner::Holding | Manner::Dogma);
        state = changed.wait_timeout_while(state, Duration::from_secs(wait), until).unwrap().0;
        state.held -= 1;
    }
    let revision = state.revision;
    let response = match &state.manner {
        Manner::Saying(response) => {
            turn.send(response)?;
            return Ok(Then::Close);
        }
        Manner::Holding | Manner::Plain | Manner::Dogma if is_known(&state) => {
            "HTTP/1.1 304 Not Modified\r\n\r\n".to_owned()
        }
        Manner::Holding | Manner::Plain => ok(&state.text, &format!("etag: \"{revision}\"\r\n")),
        Manner::Dogma => {
            ok(&enveloped(&state.text, revision, known.is_some()), "content-type: application/json\r\n")
        }
    };
    drop(state);
    turn.send(response)?;
    Ok(Then::Keep)
}

/// Returns the JSON of an entry in Central Dogma, or of the response to a watch.
fn enveloped(text: &str, revision: u64, is_watched: bool) -> String {
    let url = "/api/v1/projects/p/repos/r/contents/weir.yaml";
    let entry =
        json!({ "revision": revision, "path": "/weir.yaml", "type": "TEXT", "content": text, "url": url });
    if is_watched { json!({ "revision": revision, "entry": entry }).to_string() } else { entry.to_string() }
}

/// Returns a complete response, with further headers.
pub(super) fn ok(text: &str, fields: &str) -> String {
    format!("HTTP/1.1 200 OK\r\n{fields}content-length: {}\r\n\r\n{text}", text.len())
}

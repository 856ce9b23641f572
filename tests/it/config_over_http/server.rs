//! Test server of one document, whose behaviour a test controls.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use serde_json::json;

use crate::support::origin::ScriptedRequest;
use crate::support::{AfterResponse, Origin, wait};

/// Behaviour of the server.
#[derive(Clone, Debug)]
pub(super) enum ServerMode {
    /// Holds requests until the document changes, as Central Dogma does.
    LongPolling,
    /// Ignores `Prefer`, as a plain web server does.
    Plain,
    /// Sends these bytes and closes the connection, whatever the request.
    Raw(Vec<u8>),
    /// Sends the document in the envelope of Central Dogma, and holds requests.
    CentralDogma,
}

#[derive(Debug)]
struct ConfigServerState {
    mode: ServerMode,
    text: String,
    revision: u64,
    held: usize,
}

type SharedConfigServerState = Arc<(Mutex<ConfigServerState>, Condvar)>;

/// The test server.
#[derive(Debug)]
pub(super) struct ConfigServer {
    pub(super) origin: Origin,
    state: SharedConfigServerState,
}

impl ConfigServer {
    pub(super) fn start(manner: ServerMode, text: &str) -> Self {
        let state = ConfigServerState { mode: manner, text: text.to_owned(), revision: 1, held: 0 };
        let state: SharedConfigServerState = Arc::new((Mutex::new(state), Condvar::new()));
        let serving = Arc::clone(&state);
        let origin = Origin::start(move |turn| respond(turn, &serving));
        Self { origin, state }
    }

    pub(super) fn start_long_polling(text: &str) -> Self {
        Self::start(ServerMode::LongPolling, text)
    }

    pub(super) fn start_plain(text: &str) -> Self {
        Self::start(ServerMode::Plain, text)
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
    pub(super) fn set_mode(&self, manner: ServerMode) {
        self.change(|state| state.mode = manner);
    }

    fn change(&self, change: impl FnOnce(&mut ConfigServerState)) {
        change(&mut self.state.0.lock().unwrap());
        self.state.1.notify_all();
    }

    /// Waits until the server holds a request.
    pub(super) fn until_held(&self) {
        self.until_requests_held(1);
    }

    pub(super) fn until_requests_held(&self, requests: usize) {
        wait::until_true("a request that is held", || self.state.0.lock().unwrap().held >= requests);
    }

    /// Returns the values of this header in all requests so far.
    pub(super) fn request_headers(&self, field: &str) -> Vec<Option<String>> {
        self.origin.requests().iter().map(|seen| seen.head.get(field).map(ToOwned::to_owned)).collect()
    }
}

fn respond(
    turn: &mut ScriptedRequest<'_>,
    (state, changed): &(Mutex<ConfigServerState>, Condvar),
) -> io::Result<AfterResponse> {
    let known = turn.head.get("if-none-match").map(ToOwned::to_owned);
    let wait = turn.head.get("prefer").and_then(|prefer| prefer.strip_prefix("wait=")?.parse().ok());
    let mut state = state.lock().unwrap();
    let is_known = |state: &ConfigServerState| known.as_ref() == Some(&format!("\"{}\"", state.revision));
    if let (ServerMode::LongPolling | ServerMode::CentralDogma, Some(wait)) = (&state.mode, wait) {
        state.held += 1;
        let until = |state: &mut ConfigServerState| {
            is_known(state) && matches!(state.mode, ServerMode::LongPolling | ServerMode::CentralDogma)
        };
        state = changed.wait_timeout_while(state, Duration::from_secs(wait), until).unwrap().0;
        state.held -= 1;
    }
    let revision = state.revision;
    let response = match &state.mode {
        ServerMode::Raw(response) => {
            turn.send(response)?;
            return Ok(AfterResponse::Close);
        }
        ServerMode::LongPolling | ServerMode::Plain | ServerMode::CentralDogma if is_known(&state) => {
            "HTTP/1.1 304 Not Modified\r\n\r\n".to_owned()
        }
        ServerMode::LongPolling | ServerMode::Plain => {
            ok_response(&state.text, &format!("etag: \"{revision}\"\r\n"))
        }
        ServerMode::CentralDogma => ok_response(
            &central_dogma_json(&state.text, revision, known.is_some()),
            "content-type: application/json\r\n",
        ),
    };
    drop(state);
    turn.send(response)?;
    Ok(AfterResponse::Keep)
}

/// Returns the JSON of an entry in Central Dogma, or of the response to a watch.
fn central_dogma_json(text: &str, revision: u64, is_watched: bool) -> String {
    let url = "/api/v1/projects/p/repos/r/contents/weir.yaml";
    let entry =
        json!({ "revision": revision, "path": "/weir.yaml", "type": "TEXT", "content": text, "url": url });
    if is_watched { json!({ "revision": revision, "entry": entry }).to_string() } else { entry.to_string() }
}

/// Returns a complete response, with further headers.
pub(super) fn ok_response(text: &str, fields: &str) -> String {
    format!("HTTP/1.1 200 OK\r\n{fields}content-length: {}\r\n\r\n{text}", text.len())
}

//! A scripted HTTP/1.1 upstream that records every request.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use super::wait;
use super::wire::{Body, Framing, Head, Wire};

/// Timeout of the upstream's sockets, far longer than any client waits. So it is never the upstream that closes a slow
/// connection.
const SOCKET_TIMEOUT: Duration = Duration::from_secs(120);

/// A request as the upstream received it.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedRequest {
    /// Number of its connection, from 0.
    pub(crate) connection: usize,
    /// Request line and headers.
    pub(crate) head: Head,
    /// The part of the body that was read so far.
    pub(crate) body: Body,
    /// Whether the body was read to its end.
    pub(crate) complete: bool,
}

/// What to do with the connection after a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterResponse {
    /// Read the next request from it.
    Keep,
    /// Close it.
    Close,
}

/// A request for which a script sends the response.
#[derive(Debug)]
pub(crate) struct ScriptedRequest<'a> {
    /// Request line and headers.
    pub(crate) head: Head,
    /// Number of the request on its connection, from 0.
    pub(crate) nth: usize,
    /// The connection.
    pub(crate) wire: &'a mut Wire,
    index: usize,
    shared: &'a OriginState,
}

impl ScriptedRequest<'_> {
    /// Reads the body to its end.
    pub(crate) fn body(&mut self) -> io::Result<Body> {
        let (shared, index) = (self.shared, self.index);
        let note = |body: &Body| {
            let mut seen = shared.requests.lock().unwrap();
            seen[index].body.length = body.length;
        };
        let body = self.wire.read_body(Framing::from_request(&self.head), note)?;
        let mut seen = shared.requests.lock().unwrap();
        seen[index].body = body.clone();
        seen[index].complete = true;
        Ok(body)
    }

    /// Sends raw bytes.
    pub(crate) fn send(&self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.wire.send(bytes)
    }
}

#[derive(Debug, Default)]
struct OriginState {
    requests: Mutex<Vec<ReceivedRequest>>,
    connections: AtomicUsize,
    closing: AtomicBool,
}

/// The upstream; it stops accepting when dropped.
#[derive(Debug)]
pub(crate) struct Origin {
    address: SocketAddr,
    shared: Arc<OriginState>,
}

impl Origin {
    /// Handles every request with `script`. An error of the script closes the connection.
    pub(crate) fn start(
        script: impl Fn(&mut ScriptedRequest<'_>) -> io::Result<AfterResponse> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(OriginState::default());
        let (script, serving) = (Arc::new(script), shared.clone());
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if serving.closing.load(Ordering::SeqCst) {
                    return;
                }
                let (script, shared) = (script.clone(), serving.clone());
                let connection = shared.connections.fetch_add(1, Ordering::SeqCst);
                thread::spawn(move || serve(&*script, &shared, connection, stream));
            }
        });
        Self { address, shared }
    }

    /// Reads every request to its end and sends the same response to each.
    pub(crate) fn responding_with(answer: impl Into<Vec<u8>>) -> Self {
        let answer = answer.into();
        Self::start(move |turn| {
            turn.body()?;
            turn.send(&answer)?;
            Ok(AfterResponse::Keep)
        })
    }

    /// Responds to each request with 200 and `hello`.
    pub(crate) fn hello() -> Self {
        Self::responding_with("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")
    }

    /// Returns its address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns all requests so far.
    pub(crate) fn requests(&self) -> Vec<ReceivedRequest> {
        self.shared.requests.lock().unwrap().clone()
    }

    /// Returns the only request so far.
    ///
    /// # Panics
    ///
    /// If there is not exactly one.
    pub(crate) fn only_request(&self) -> ReceivedRequest {
        let seen = self.requests();
        assert_eq!(seen.len(), 1, "the upstream received {seen:#?}");
        seen.into_iter().next().unwrap()
    }

    /// Returns the most recent request.
    pub(crate) fn last_request(&self) -> ReceivedRequest {
        self.requests().pop().unwrap()
    }

    /// Returns the number of connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Waits until there is a request for which `wanted` is true.
    pub(crate) fn until_request(&self, what: &str, wanted: impl Fn(&ReceivedRequest) -> bool) {
        wait::until_true(what, || self.shared.requests.lock().unwrap().iter().any(&wanted));
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        // Wakes the accepting thread. If connecting fails, that thread has already ended.
        drop(TcpStream::connect(self.address));
    }
}

/// Returns an address where every connection attempt fails, as long as the socket exists.
pub(crate) fn refusing_address() -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

fn serve(
    script: &(impl Fn(&mut ScriptedRequest<'_>) -> io::Result<AfterResponse> + ?Sized),
    shared: &OriginState,
    connection: usize,
    stream: TcpStream,
) {
    let mut wire = Wire::new(stream);
    wire.stream().set_read_timeout(Some(SOCKET_TIMEOUT)).unwrap();
    for nth in 0.. {
        let Ok(Some(head)) = wire.read_head() else { return };
        let index = {
            let mut seen = shared.requests.lock().unwrap();
            seen.push(ReceivedRequest {
                connection,
                head: head.clone(),
                body: Body::default(),
                complete: false,
            });
            seen.len() - 1
        };
        let mut turn = ScriptedRequest { head, nth, wire: &mut wire, index, shared };
        match script(&mut turn) {
            Ok(AfterResponse::Keep) => {}
            Ok(AfterResponse::Close) | Err(_) => return,
        }
    }
}

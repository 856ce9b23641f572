//! A client of HTTP/2 with prior knowledge, by the `h2` crate: it lets a test see frames rather than requests.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request, StatusCode};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

/// How long anything may take before a test gives up.
const DEADLINE: Duration = super::wait::DEADLINE;

/// One connection.
pub(crate) struct H2 {
    runtime: Runtime,
    sender: SendRequest<Bytes>,
    ended: Option<tokio::sync::oneshot::Receiver<Result<(), h2::Error>>>,
    address: SocketAddr,
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Whole {
    /// The status.
    pub(crate) status: StatusCode,
    /// The fields before the body.
    pub(crate) headers: HeaderMap,
    /// The body.
    pub(crate) body: Vec<u8>,
    /// The fields after it.
    pub(crate) trailers: Option<HeaderMap>,
    /// Whether the head was all there is.
    pub(crate) is_head_only: bool,
}

impl Whole {
    /// A field's value as text; empty if there is none.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

impl H2 {
    /// A connection to `address`.
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let (sent, received) = std::sync::mpsc::channel();
        let (ending, ended) = tokio::sync::oneshot::channel();
        // On a thread of its own, so that it goes on while a test waits for something else.
        std::thread::spawn(move || {
            runtime().block_on(async {
                let stream = TcpStream::connect(address).await.unwrap();
                // One stream that is not read must not take the window from the others.
                let mut client = h2::client::Builder::new();
                client.initial_connection_window_size(1 << 20);
                let (sender, connection) = client.handshake(stream).await.unwrap();
                sent.send(sender).unwrap();
                // Nobody may want to know.
                let _ = ending.send(connection.await);
            });
        });
        Self { runtime: runtime(), sender: received.recv().unwrap(), ended: Some(ended), address }
    }

    /// A request of this connection's authority, to be given more fields.
    pub(crate) fn request(&self, method: &str, path: &str) -> http::request::Builder {
        Request::builder().method(method).uri(format!("http://{}{path}", self.address))
    }

    /// A call of a procedure.
    pub(crate) fn call(&self) -> http::request::Builder {
        self.request("POST", "/package.Service/Method").header("content-type", "application/grpc")
    }

    /// Waits until the other side has said that it takes extended CONNECT (RFC 8441 section 3).
    pub(crate) fn until_tunnels_are_offered(&self) {
        super::wait::until_true("the offer", || self.sender.is_extended_connect_protocol_enabled());
    }

    /// Sends a request's head; the body is to be sent by whoever asks, unless it `ends` there.
    pub(crate) fn begin(
        &mut self,
        request: http::request::Builder,
        ends: bool,
    ) -> (ResponseFuture, SendStream<Bytes>) {
        let sender = self.sender.clone();
        let mut sender = self.within(async { sender.ready().await }).unwrap();
        sender.send_request(request.body(()).unwrap(), ends).unwrap()
    }

    /// Waits for the answer's head.
    pub(crate) fn head(&self, response: ResponseFuture) -> Result<http::Response<RecvStream>, h2::Error> {
        self.within(response)
    }

    /// Waits for all of an answer.
    pub(crate) fn whole(&self, response: ResponseFuture) -> Result<Whole, h2::Error> {
        self.within(async {
            let (head, mut stream) = response.await?.into_parts();
            let is_head_only = stream.is_end_stream();
            let mut body = Vec::new();
            while let Some(data) = stream.data().await {
                let data = data?;
                stream.flow_control().release_capacity(data.len())?;
                body.extend_from_slice(&data);
            }
            let trailers = stream.trailers().await?;
            Ok(Whole { status: head.status, headers: head.headers, body, trailers, is_head_only })
        })
    }

    /// A request without a body, and its answer.
    pub(crate) fn ask(&mut self, request: http::request::Builder) -> Whole {
        let (response, _) = self.begin(request, true);
        self.whole(response).unwrap()
    }

    /// The same, where the connection may end instead.
    pub(crate) fn try_ask(&mut self, request: http::request::Builder) -> Result<Whole, h2::Error> {
        let sender = self.sender.clone();
        let mut sender = self.within(async { sender.ready().await })?;
        let (response, _) = sender.send_request(request.body(()).unwrap(), true)?;
        self.whole(response)
    }

    /// Waits until the other side has ended the connection.
    pub(crate) fn until_ended(&mut self) -> Result<(), h2::Error> {
        let ended = self.ended.take().expect("asked once");
        self.within(ended).unwrap()
    }

    /// Runs `work`, for so long at most.
    pub(crate) fn within<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(async { tokio::time::timeout(DEADLINE, work).await.expect("waited in vain") })
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

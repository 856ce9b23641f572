//! An HTTP/2 client with prior knowledge, based on the `h2` crate, so that a test can observe single frames.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request, StatusCode};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

/// Maximum duration of any operation.
const DEADLINE: Duration = super::wait::DEADLINE;

/// One connection.
pub(crate) struct H2Client {
    runtime: Runtime,
    sender: SendRequest<Bytes>,
    closed: Option<tokio::sync::oneshot::Receiver<Result<(), h2::Error>>>,
    address: SocketAddr,
}

/// A complete response.
#[derive(Debug)]
pub(crate) struct H2Response {
    /// Status code.
    pub(crate) status: StatusCode,
    /// Header section.
    pub(crate) headers: HeaderMap,
    /// Body.
    pub(crate) body: Vec<u8>,
    /// Trailers, if there were any.
    pub(crate) trailers: Option<HeaderMap>,
    /// Whether the response ended with the header section.
    pub(crate) is_head_only: bool,
}

impl H2Response {
    /// Returns the value of a header as text; empty if it is missing.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

impl H2Client {
    /// Connects to `address`.
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let (sent, received) = std::sync::mpsc::channel();
        let (ending, ended) = tokio::sync::oneshot::channel();
        // The connection has its own thread, so that it makes progress while the test waits for something else.
        std::thread::spawn(move || {
            runtime().block_on(async {
                let stream = TcpStream::connect(address).await.unwrap();
                // Large enough that one unread stream does not use up the window of the connection.
                let mut client = h2::client::Builder::new();
                client.initial_connection_window_size(1 << 20);
                let (sender, connection) = client.handshake(stream).await.unwrap();
                sent.send(sender).unwrap();
                // The receiver may have been dropped.
                let _ = ending.send(connection.await);
            });
        });
        Self { runtime: runtime(), sender: received.recv().unwrap(), closed: Some(ended), address }
    }

    /// Returns a request for this connection's authority, to which headers can be added.
    pub(crate) fn request(&self, method: &str, path: &str) -> http::request::Builder {
        Request::builder().method(method).uri(format!("http://{}{path}", self.address))
    }

    /// Returns a gRPC call.
    pub(crate) fn call(&self) -> http::request::Builder {
        self.request("POST", "/package.Service/Method").header("content-type", "application/grpc")
    }

    /// Waits until the peer has announced support for extended CONNECT (RFC 8441 section 3).
    pub(crate) fn until_extended_connect_enabled(&self) {
        super::wait::until_true("the setting", || self.sender.is_extended_connect_protocol_enabled());
    }

    /// Sends the header section of a request. Without `end_of_stream` the caller sends the body.
    pub(crate) fn send_request(
        &mut self,
        request: http::request::Builder,
        end_of_stream: bool,
    ) -> (ResponseFuture, SendStream<Bytes>) {
        self.try_send_request(request, end_of_stream).unwrap()
    }

    /// As [`Self::send_request`]; returns an error if the connection ends instead.
    pub(crate) fn try_send_request(
        &self,
        request: http::request::Builder,
        end_of_stream: bool,
    ) -> Result<(ResponseFuture, SendStream<Bytes>), h2::Error> {
        let sender = self.sender.clone();
        let mut sender = self.block_on(async { sender.ready().await })?;
        sender.send_request(request.body(()).unwrap(), end_of_stream)
    }

    /// Waits for the header section of a response.
    pub(crate) fn response_head(
        &self,
        response: ResponseFuture,
    ) -> Result<http::Response<RecvStream>, h2::Error> {
        self.block_on(response)
    }

    /// Waits for a complete response.
    pub(crate) fn read_response(&self, response: ResponseFuture) -> Result<H2Response, h2::Error> {
        self.block_on(async {
            let (head, mut stream) = response.await?.into_parts();
            let is_head_only = stream.is_end_stream();
            let mut body = Vec::new();
            while let Some(data) = stream.data().await {
                let data = data?;
                stream.flow_control().release_capacity(data.len())?;
                body.extend_from_slice(&data);
            }
            let trailers = stream.trailers().await?;
            Ok(H2Response { status: head.status, headers: head.headers, body, trailers, is_head_only })
        })
    }

    /// Sends a request without a body and waits for the response.
    pub(crate) fn fetch(&mut self, request: http::request::Builder) -> H2Response {
        let (response, _) = self.send_request(request, true);
        self.read_response(response).unwrap()
    }

    /// Sends a request without a body and waits for the response; returns an error if the connection ends instead.
    pub(crate) fn try_fetch(&mut self, request: http::request::Builder) -> Result<H2Response, h2::Error> {
        let (response, _) = self.try_send_request(request, true)?;
        self.read_response(response)
    }

    /// Waits until the peer has closed the connection.
    pub(crate) fn until_closed(&mut self) -> Result<(), h2::Error> {
        let ended = self.closed.take().expect("called once");
        self.block_on(ended).unwrap()
    }

    /// Runs `work` to its end, at most until the deadline.
    pub(crate) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(async { tokio::time::timeout(DEADLINE, work).await.expect("timed out") })
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

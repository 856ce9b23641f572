//! An HTTP/1.1 client with whole requests in one call, and arbitrary bytes where a test needs them.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};

use socket2::{Domain, Socket, Type};

use super::wire::{Body, Framing, Head, Wire};

/// A request to be sent.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    method: String,
    target: String,
    host: String,
    fields: String,
    body: Vec<u8>,
}

impl Request {
    /// Returns a request without a body.
    pub(crate) fn new(method: &str, target: &str) -> Self {
        Self {
            method: method.to_owned(),
            target: target.to_owned(),
            host: "test.local".to_owned(),
            fields: String::new(),
            body: Vec::new(),
        }
    }

    /// Returns a GET.
    pub(crate) fn get(target: &str) -> Self {
        Self::new("GET", target)
    }

    /// Returns a POST with a body.
    pub(crate) fn post(target: &str, body: impl Into<Vec<u8>>) -> Self {
        Self { body: body.into(), ..Self::new("POST", target) }
    }

    /// Replaces the method.
    pub(crate) fn with_method(self, method: &str) -> Self {
        Self { method: method.to_owned(), ..self }
    }

    /// Replaces the Host header.
    pub(crate) fn host(self, host: &str) -> Self {
        Self { host: host.to_owned(), ..self }
    }

    /// Adds a header.
    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.fields.push_str(&format!("{name}: {value}\r\n"));
        self
    }

    /// Adds an X-Forwarded-For header, as a proxy would for `client`.
    pub(crate) fn forwarded_for(self, client: &str) -> Self {
        self.header("x-forwarded-for", client)
    }

    /// Encodes the request, with a Content-Length unless it is a GET or HEAD without a body.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let Self { method, target, host, fields, body } = self;
        let length = match (body.len(), method.as_str()) {
            (0, "GET" | "HEAD") => String::new(),
            (length, _) => format!("content-length: {length}\r\n"),
        };
        let mut bytes =
            format!("{method} {target} HTTP/1.1\r\nhost: {host}\r\n{length}{fields}\r\n").into_bytes();
        bytes.extend_from_slice(body);
        bytes
    }
}

/// A response.
#[derive(Clone, Debug)]
pub(crate) struct Response {
    /// Status code.
    pub(crate) status: u16,
    /// Status line and headers.
    pub(crate) head: Head,
    /// Body.
    pub(crate) body: Body,
    /// Interim responses that preceded it.
    pub(crate) interim: Vec<Head>,
}

impl Response {
    /// Returns the first value of a header.
    ///
    /// # Panics
    ///
    /// If the header is missing.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.head.get(name).unwrap_or_else(|| panic!("no {name} in {:#?}", self.head))
    }

    /// Returns the value of a numeric header.
    ///
    /// # Panics
    ///
    /// If the header is missing or not a number.
    pub(crate) fn numeric_header(&self, name: &str) -> u64 {
        self.header(name).parse().unwrap_or_else(|_| panic!("{name} is not a number in {:#?}", self.head))
    }
}

/// A connection to the proxy.
#[derive(Debug)]
pub(crate) struct Client {
    /// The raw connection, for what the methods do not support.
    pub(crate) wire: Wire,
}

impl Client {
    /// Connects to `to`.
    pub(crate) fn connect(to: SocketAddr) -> Self {
        Self { wire: Wire::new(TcpStream::connect(to).unwrap()) }
    }

    /// Connects from the given loopback address.
    pub(crate) fn connect_from(from: &str, to: SocketAddr) -> Self {
        let from: IpAddr = from.parse().unwrap();
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::new(from, 0).into()).unwrap();
        socket.connect(&to.into()).unwrap();
        Self { wire: Wire::new(socket.into()) }
    }

    /// Sends raw bytes.
    pub(crate) fn send(&self, bytes: impl AsRef<[u8]>) {
        self.wire.send(bytes).unwrap();
    }

    /// Sends a request and reads the response.
    pub(crate) fn fetch(&mut self, request: &Request) -> Response {
        self.try_fetch(request)
            .unwrap_or_else(|error| panic!("{} {}: {error}", request.method, request.target))
    }

    /// Sends a request and reads the response; returns errors instead of panicking.
    pub(crate) fn try_fetch(&mut self, request: &Request) -> io::Result<Response> {
        self.wire.send(request.to_bytes())?;
        self.try_read_response(&request.method)
    }

    /// Sends a GET and reads the response.
    pub(crate) fn get(&mut self, target: &str) -> Response {
        self.fetch(&Request::get(target))
    }

    /// Reads the response to a request with `method`.
    pub(crate) fn read_response(&mut self, method: &str) -> Response {
        self.try_read_response(method)
            .unwrap_or_else(|error| panic!("no complete response to {method}: {error}"))
    }

    /// Reads the response to a request with `method`; returns errors instead of panicking.
    pub(crate) fn try_read_response(&mut self, method: &str) -> io::Result<Response> {
        let mut interim = Vec::new();
        let head = loop {
            let head = self.wire.read_head()?.ok_or(io::ErrorKind::UnexpectedEof)?;
            match head.word(1) {
                "101" => break head,
                status if status.starts_with('1') => interim.push(head),
                _ => break head,
            }
        };
        let body = self.wire.read_body(Framing::from_response(&head, method), |_| {})?;
        let status = head.word(1).parse().map_err(io::Error::other)?;
        Ok(Response { status, head, body, interim })
    }

    /// Waits for the peer to close the connection. Returns `false` if the peer sends data or the deadline passes.
    pub(crate) fn is_closed(&mut self) -> bool {
        self.wire.is_closed()
    }
}

/// Sends one request on a new connection and reads the response.
pub(crate) fn fetch(to: SocketAddr, request: &Request) -> Response {
    Client::connect(to).fetch(request)
}

/// Sends one GET on a new connection and reads the response.
pub(crate) fn get(to: SocketAddr, target: &str) -> Response {
    fetch(to, &Request::get(target))
}

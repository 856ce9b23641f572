//! The last response of a connection, and the end of the connection.

use std::io::{self, Read as _};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::mpsc::channel;

use crate::support::wait::until_true;
use crate::support::{AfterResponse, Client, Origin, Request, Weir, config, config_with};

const ATTEMPTS: usize = 40;

/// Waits for the first bytes, and reads what has arrived with them. Returns it, and whether the end of the stream has arrived
/// as well.
fn read_arrived(mut stream: &TcpStream) -> (String, bool) {
    stream.peek(&mut [0]).unwrap();
    stream.set_nonblocking(true).unwrap();
    let (mut content, mut buffer) = (Vec::new(), [0; 4096]);
    let is_at_end = loop {
        match stream.read(&mut buffer) {
            Ok(0) => break true,
            Ok(length) => content.extend_from_slice(&buffer[..length]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break false,
            Err(error) => panic!("{error}"),
        }
    };
    (String::from_utf8(content).unwrap(), is_at_end)
}

/// Sends `request` on new connections. Returns how often the end of the connection arrived with the response.
fn count_arrivals_with_end(weir: &Weir, request: &str) -> usize {
    let arrives_with_end = |_: &usize| {
        let client = Client::connect(weir.address());
        client.send(request);
        let (response, is_at_end) = read_arrived(client.wire.stream());
        assert!(response.ends_with("\r\n\r\nhello"), "{response}");
        is_at_end
    };
    (0..ATTEMPTS).filter(arrives_with_end).count()
}

#[test]
fn end_of_the_connection_arrives_with_the_response() {
    let origin = Origin::hello();
    let upstream = format!("{{ address: \"{}\" }}", origin.address());
    let trusted = "client_ip: { trusted_proxies: 127.0.0.1 }\n";
    let weir =
        Weir::start(&config_with("{ address: 127.0.0.1:0, proxy_protocol: optional }", &upstream, trusted));
    for request in [
        "GET / HTTP/1.1\r\nhost: a.test\r\nconnection: close\r\n\r\n",
        "GET / HTTP/1.0\r\nhost: a.test\r\n\r\n",
        "PROXY TCP4 127.0.0.9 127.0.0.1 1 2\r\nGET / HTTP/1.1\r\nhost: a.test\r\nconnection: close\r\n\r\n",
    ] {
        let arrivals = count_arrivals_with_end(&weir, request);
        // Between both, the kernel waits for 200 ms at most, and Weir's thread may sleep for longer.
        assert!(arrivals > ATTEMPTS * 3 / 4, "{arrivals} of {ATTEMPTS}: {request}");
    }
}

/// The bytes that stay unread cause a reset when the connection is closed.
#[test]
fn response_reaches_a_client_that_has_sent_more_than_its_last_request() {
    let (release, released) = channel();
    let released = Mutex::new(released);
    let origin = Origin::start(move |turn| {
        let _ = released.lock().unwrap().recv();
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")?;
        Ok(AfterResponse::Keep)
    });
    let weir = Weir::start(&config(origin.address(), ""));
    let mut client = Client::connect(weir.address());
    client.send(Request::get("/").header("connection", "close").to_bytes());
    until_true("the request to arrive", || origin.requests().len() == 1);
    // More than Weir reads ahead, to notice a client that closes the connection.
    client.send([b'x'; 100_000]);
    release.send(()).unwrap();
    let answer = client.try_read_response("GET");
    assert!(answer.as_ref().is_ok_and(|answer| answer.body.text() == "hello"), "{answer:?}");
}

//! More concurrent handshakes than the maximum.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use super::{TlsProxy, text};
use crate::support::{run_concurrently, wait};

impl TlsProxy {
    /// Connects a client that sends its ClientHello and nothing more.
    fn start_handshake(&self, config: &Arc<ClientConfig>) -> TcpStream {
        let name = ServerName::try_from("app.example").unwrap();
        let mut session = ClientConnection::new(Arc::clone(config), name).unwrap();
        let mut stream = TcpStream::connect(self.weir.address()).unwrap();
        let mut hello = Vec::new();
        session.write_tls(&mut hello).unwrap();
        stream.write_all(&hello).unwrap();
        stream
    }

    fn handshakes(&self, outcome: &str) -> f64 {
        self.weir.metric("weir_tls_handshakes_total", &[("outcome", outcome)])
    }

    fn handshakes_in_flight(&self) -> f64 {
        self.weir.metric("weir_tls_handshakes_in_flight", &[])
    }
}

#[test]
fn handshakes_over_the_limit_wait_and_are_served() {
    let secured = TlsProxy::start(", handshakes: 1", "");
    let answers =
        run_concurrently(20, |_| text(&secured.curl("app.example", &["--write-out", " %{http_code}"])));
    assert!(answers.iter().all(|answer| answer == "hello 200"), "{answers:?}");
    assert_eq!((secured.handshakes("crowded"), secured.handshakes_in_flight()), (0.0, 0.0));
}

#[test]
fn stalled_handshake_is_aborted_while_others_wait() {
    let secured = TlsProxy::start_with_header_timeout("1h", ", handshakes: 2", "");
    let config = secured.authority.client(None);
    let mut held: Vec<_> = (0..2).map(|_| secured.start_handshake(&config)).collect();
    wait::until_true("two handshakes in progress", || secured.handshakes_in_flight() == 2.0);
    assert_eq!(text(&secured.curl("app.example", &[])), "hello");
    assert_eq!(
        (secured.handshakes("crowded"), secured.handshakes_in_flight()),
        (1.0, 1.0),
        "one handshake aborted"
    );
    // The oldest handshake was aborted.
    held[0].set_read_timeout(Some(wait::DEADLINE)).unwrap();
    let ended = held[0].read_to_end(&mut Vec::new());
    assert!(ended.is_ok() || ended.is_err_and(|error| error.kind() != std::io::ErrorKind::WouldBlock));
}

#[test]
fn silent_connection_takes_no_handshake_permit() {
    let secured = TlsProxy::start_with_header_timeout("1h", ", handshakes: 1", "");
    let silent: Vec<_> = (0..5).map(|_| TcpStream::connect(secured.weir.address()).unwrap()).collect();
    let opened = || secured.weir.metric("weir_downstream_connections", &[]);
    wait::until_true("the connections", || opened() >= silent.len() as f64);
    assert_eq!(secured.handshakes_in_flight(), 0.0);
    assert_eq!(text(&secured.curl("app.example", &[])), "hello");
    assert_eq!((secured.handshakes("full"), secured.handshakes("crowded")), (1.0, 0.0));
}

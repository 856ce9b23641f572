//! More concurrent handshakes than the maximum.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use super::{Secured, text};
use crate::support::{at_once, wait};

impl Secured {
    /// Connects a client that sends its ClientHello and nothing more.
    fn begin(&self, config: &Arc<ClientConfig>) -> TcpStream {
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

    fn under_way(&self) -> f64 {
        self.weir.metric("weir_tls_handshakes_in_flight", &[])
    }
}

#[test]
fn who_comes_when_all_places_are_taken_waits_and_is_served() {
    let secured = Secured::start(", handshakes: 1", "");
    let answers = at_once(20, |_| text(&secured.curl("app.example", &["--write-out", " %{http_code}"])));
    assert!(answers.iter().all(|answer| answer == "hello 200"), "{answers:?}");
    assert_eq!((secured.handshakes("crowded"), secured.under_way()), (0.0, 0.0));
}

#[test]
fn who_begins_and_does_not_go_on_gives_way_to_others() {
    let secured = Secured::patient("1h", ", handshakes: 2", "");
    let config = secured.authority.client(None);
    let mut held: Vec<_> = (0..2).map(|_| secured.begin(&config)).collect();
    wait::until_true("two handshakes in progress", || secured.under_way() == 2.0);
    assert_eq!(text(&secured.curl("app.example", &[])), "hello");
    assert_eq!((secured.handshakes("crowded"), secured.under_way()), (1.0, 1.0), "one handshake aborted");
    // The oldest handshake was aborted.
    held[0].set_read_timeout(Some(wait::DEADLINE)).unwrap();
    let ended = held[0].read_to_end(&mut Vec::new());
    assert!(ended.is_ok() || ended.is_err_and(|error| error.kind() != std::io::ErrorKind::WouldBlock));
}

#[test]
fn who_says_nothing_takes_no_place() {
    let secured = Secured::patient("1h", ", handshakes: 1", "");
    let silent: Vec<_> = (0..5).map(|_| TcpStream::connect(secured.weir.address()).unwrap()).collect();
    let opened = || secured.weir.metric("weir_downstream_connections", &[]);
    wait::until_true("the connections", || opened() >= silent.len() as f64);
    assert_eq!(secured.under_way(), 0.0);
    assert_eq!(text(&secured.curl("app.example", &[])), "hello");
    assert_eq!((secured.handshakes("full"), secured.handshakes("crowded")), (1.0, 0.0));
}

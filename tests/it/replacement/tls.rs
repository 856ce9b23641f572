//! Connections with TLS, whose state cannot move to another process.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};

use crate::support::pki::Authority;
use crate::support::{Weir, wait};

type TlsStream = StreamOwned<ClientConnection, TcpStream>;

fn connect(weir: &Weir, authority: &Authority) -> TlsStream {
    let name = ServerName::try_from("app.example").unwrap();
    let socket = TcpStream::connect(weir.address()).unwrap();
    socket.set_read_timeout(Some(wait::DEADLINE)).unwrap();
    StreamOwned::new(ClientConnection::new(authority.client(None), name).unwrap(), socket)
}

/// Sends a request and returns the head of the response, whose body has one byte.
fn exchange(stream: &mut TlsStream) -> String {
    stream.write_all(b"GET / HTTP/1.1\r\nhost: app.example\r\n\r\n").unwrap();
    let mut response = Vec::new();
    while !response.windows(4).any(|part| part == b"\r\n\r\n") {
        let mut part = [0; 1024];
        let length = stream.read(&mut part).unwrap();
        assert!(length > 0, "closed after {:?}", String::from_utf8_lossy(&response));
        response.extend(&part[..length]);
    }
    String::from_utf8(response).unwrap()
}

#[test]
fn next_response_of_a_connection_with_tls_closes_it() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new("authority");
    let (certificate, key) = authority.issue("app.example", directory.path(), "app");
    let tls = format!("{{ certificate: {}, key: {} }}", certificate.display(), key.display());
    let weir = Weir::start(&format!(
        "listeners: [{{ address: 127.0.0.1:0, name: main, tls: {tls} }}]\nadmin: {{ address: 127.0.0.1:0 }}\n\
         workers: 2\nupstream: {{ address: nowhere.invalid:1 }}\n\
         rules: [{{ name: all, limit: 1/h, algorithm: fixed_window }}, {{ name: no, action: deny }}]\n"
    ));
    let mut stream = connect(&weir, &authority);
    assert!(exchange(&mut stream).starts_with("HTTP/1.1 403"));
    weir.replace();
    let second = exchange(&mut stream);
    assert!(second.starts_with("HTTP/1.1 403") || second.starts_with("HTTP/1.1 429"), "{second}");
    assert!(second.to_lowercase().contains("connection: close"), "{second}");
    // The other process has sent it: the old one decides nothing.
    assert_eq!(weir.metric("weir_requests_total", &[]), 1.0);
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "it is closed");
    drop(stream);
    weir.until_old_has_ended();
    assert!(exchange(&mut connect(&weir, &authority)).starts_with("HTTP/1.1 4"));
}

//! Idle connections: they take little memory, and their next requests lose nothing.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use tempfile::TempDir;

use crate::support::pki::Authority;
use crate::support::wait::{self, pause, within};
use crate::support::{Client, Origin, Weir, config_with, run_concurrently};

/// Around the time after which a connection without a request is parked: a second, and up to two ticks.
const EARLIEST_PAUSE: Duration = Duration::from_millis(950);
const STEP: Duration = Duration::from_millis(5);
const CLIENTS: usize = 80;
/// A time after which a connection without a request is parked.
const PARKED_AFTER: Duration = Duration::from_millis(1300);

const TWO_REQUESTS: &[u8] =
    b"\r\nGET /second HTTP/1.1\r\nhost: app.example\r\n\r\nGET /third HTTP/1.1\r\nhost: app.example\r\n\r\n";

fn read_responses(stream: &mut impl Read, count: usize) -> io::Result<()> {
    let mut read = Vec::new();
    let mut buffer = [0; 4096];
    while String::from_utf8_lossy(&read).matches("\r\n\r\nhello").count() < count {
        match stream.read(&mut buffer)? {
            0 => return Err(io::Error::other(String::from_utf8_lossy(&read).into_owned())),
            length => read.extend_from_slice(&buffer[..length]),
        }
    }
    Ok(())
}

/// Sends a request and, after a pause that depends on `index`, two more. These are divided at another place for each
/// index.
fn send_after_pause(mut stream: impl Read + Write, index: usize) -> io::Result<()> {
    stream.write_all(b"GET /first HTTP/1.1\r\nhost: app.example\r\n\r\n")?;
    read_responses(&mut stream, 1)?;
    pause(EARLIEST_PAUSE + STEP * index as u32);
    let (begin, rest) = TWO_REQUESTS.split_at(index % TWO_REQUESTS.len());
    for part in [begin, rest] {
        stream.write_all(part)?;
        stream.flush()?;
    }
    read_responses(&mut stream, 2)
}

fn connect(weir: &Weir) -> TcpStream {
    let stream = TcpStream::connect(weir.address()).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(wait::DEADLINE)).unwrap();
    stream
}

fn start(origin: &Origin, listener: &str) -> Weir {
    let listener = format!("{{ address: 127.0.0.1:0{listener} }}");
    Weir::start(&config_with(&listener, &format!("{{ address: \"{}\" }}", origin.address()), ""))
}

#[test]
fn connection_that_is_parked_serves_its_next_requests() {
    let origin = Origin::hello();
    let weir = start(&origin, "");
    for served in run_concurrently(CLIENTS, |index| send_after_pause(connect(&weir), index)) {
        served.unwrap();
    }
    assert_eq!(origin.requests().len(), 3 * CLIENTS);
}

/// A proxy with a certificate for `app.example`.
struct SecuredProxy {
    origin: Origin,
    weir: Weir,
    client: Arc<ClientConfig>,
    _directory: TempDir,
}

impl SecuredProxy {
    fn start(listener: &str) -> Self {
        let (directory, origin) = (tempfile::tempdir().unwrap(), Origin::hello());
        let authority = Authority::new("authority");
        let (certificate, key) = authority.issue("app.example", directory.path(), "app");
        let files = format!("{{ certificate: {}, key: {} }}", certificate.display(), key.display());
        let weir = start(&origin, &format!("{listener}, tls: {files}"));
        Self { origin, weir, client: authority.client(None), _directory: directory }
    }

    fn connect(&self) -> StreamOwned<ClientConnection, TcpStream> {
        let name = ServerName::try_from("app.example").unwrap();
        let session = ClientConnection::new(Arc::clone(&self.client), name).unwrap();
        StreamOwned::new(session, connect(&self.weir))
    }
}

#[test]
fn tls_connection_that_is_parked_serves_its_next_requests() {
    let proxy = SecuredProxy::start("");
    for served in run_concurrently(CLIENTS, |index| send_after_pause(proxy.connect(), index)) {
        served.unwrap();
    }
    assert_eq!(proxy.origin.requests().len(), 3 * CLIENTS);
}

#[test]
fn parked_connection_is_closed_at_its_idle_timeout() {
    let origin = Origin::hello();
    let weir = start(&origin, ", idle_timeout: 1500ms");
    let mut client = Client::connect(weir.address());
    assert_eq!(client.get("/").status, 200);
    assert!(client.is_closed());
}

#[test]
fn parked_tls_connection_is_closed_with_close_notify() {
    let proxy = SecuredProxy::start(", idle_timeout: 1500ms");
    let mut stream = proxy.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: app.example\r\n\r\n").unwrap();
    read_responses(&mut stream, 1).unwrap();
    // Without close_notify, it would be an error.
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}

#[test]
fn parked_connections_are_closed_by_a_drain() {
    let origin = Origin::hello();
    let mut weir = start(&origin, "");
    let mut clients: Vec<_> = (0..10).map(|_| Client::connect(weir.address())).collect();
    clients.iter_mut().for_each(|client| assert_eq!(client.get("/").status, 200));
    pause(PARKED_AFTER);
    weir.terminate();
    assert!(clients.iter_mut().all(Client::is_closed));
    assert!(weir.wait_exit().success());
}

#[test]
fn idle_connection_takes_few_kilobytes() {
    /// Clients that come together, and the groups of them. The memory that one group releases serves the next, so
    /// that it does not matter when the allocator returns memory to the system.
    const GROUP: usize = 80;
    const GROUPS: usize = 5;
    const MAX_BYTES: f64 = 6.0 * 1024.0;
    let origin = Origin::hello();
    let weir = start(&origin, "");
    let add_group = || -> Vec<Client> {
        let mut clients: Vec<_> = (0..GROUP).map(|_| Client::connect(weir.address())).collect();
        clients.iter_mut().for_each(|client| assert_eq!(client.get("/").status, 200));
        pause(PARKED_AFTER);
        clients
    };
    let resident = || weir.metric("process_resident_memory_bytes", &[]);
    let mut kept = vec![add_group()];
    let before = resident();
    kept.extend((0..GROUPS).map(|_| add_group()));
    let each = || (resident() - before) / (GROUPS * GROUP) as f64;
    let is_small = within(Duration::from_secs(20), || (each() < MAX_BYTES).then_some(()));
    assert!(is_small.is_some(), "{} bytes for each idle connection", each());
}

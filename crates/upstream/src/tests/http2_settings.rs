//! Tests of an endpoint that allows no streams, and then sends no settings.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::pin::pin;
use std::thread;

use tokio::sync::oneshot;
use tokio::task::LocalSet;

use super::*;

const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Sends SETTINGS with this `SETTINGS_MAX_CONCURRENT_STREAMS`.
fn send_settings(stream: &mut TcpStream, max_streams: u8) {
    let frame = [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, max_streams];
    stream.write_all(&frame).expect("the client reads");
}

/// Accepts three connections: one without streams, one without settings and one with both. Keeps them open.
fn serve(listener: &TcpListener) -> [TcpStream; 3] {
    let accept = || listener.accept().expect("a connection").0;
    let mut closed = accept();
    send_settings(&mut closed, 0);
    let (silent, mut usable) = (accept(), accept());
    send_settings(&mut usable, 100);
    [closed, silent, usable]
}

/// Returns an upstream whose only endpoint is `listener`, and uses HTTP/2.
fn upstream_at(listener: &TcpListener, connect_timeout: Duration) -> Upstream {
    let SocketAddr::V4(address) = listener.local_addr().unwrap() else { panic!("not IPv4") };
    let mut settings = settings(&[(&address.ip().to_string(), address.port())]);
    (settings.http2, settings.connect_timeout) = (true, connect_timeout);
    settings.limits = CircuitBreakerLimits { connections: 8, pending: 8, requests: 8, ..settings.limits };
    upstream(settings)
}

/// Uses the first connection, which turns out to allow no streams; a second later, another one may be opened.
async fn find_closed(endpoint: &Endpoint) {
    let line = endpoint.connect(CLIENT, false).await.expect("a connection");
    line.allows_upgrade().await;
    assert!(endpoint.try_checkout(CLIENT, false).expect("a permit").is_none(), "it allows no streams");
    drop(line);
    endpoint.tick_second();
}

#[tokio::test]
async fn endpoint_without_settings_does_not_block_later_requests() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let upstream = upstream_at(&listener, Duration::from_millis(100));
    let server = thread::spawn(move || serve(&listener));
    let endpoint = upstream.pick(&[]).expect("an endpoint");
    let connecting = async {
        find_closed(&endpoint).await;
        let silent = endpoint.connect(CLIENT, false).await;
        assert!(matches!(silent, Err(UpstreamError::ConnectTimeout)), "{silent:?}");
        endpoint.connect(CLIENT, false).await.expect("a usable connection");
    };
    LocalSet::new().run_until(connecting).await;
    server.join().unwrap();
}

/// Accepts three connections as [`serve`] does, but waits until the client has closed the second. `greeted` is sent once
/// the client has sent its preface on that.
fn serve_slowly(listener: &TcpListener, greeted: oneshot::Sender<()>) -> [TcpStream; 2] {
    let accept = || listener.accept().expect("a connection").0;
    let mut closed = accept();
    send_settings(&mut closed, 0);
    let mut silent = accept();
    silent.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    silent.read_exact(&mut [0; 24]).expect("the preface");
    greeted.send(()).expect("the test waits");
    silent.read_to_end(&mut Vec::new()).expect("the client closes the connection");
    let mut usable = accept();
    send_settings(&mut usable, 100);
    [closed, usable]
}

#[tokio::test]
async fn connection_without_settings_is_used_by_no_other_request_and_closes_with_the_first() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let upstream = upstream_at(&listener, Duration::from_secs(60));
    let (greeted, mut is_greeted) = oneshot::channel();
    let server = thread::spawn(move || serve_slowly(&listener, greeted));
    let endpoint = upstream.pick(&[]).expect("an endpoint");
    let connecting = async {
        find_closed(&endpoint).await;
        let mut opening = Box::pin(endpoint.connect(CLIENT, false));
        let mut waiting = pin!(endpoint.connect(CLIENT, false));
        tokio::select! {
            biased;
            opened = &mut opening => panic!("the settings have not arrived: {opened:?}"),
            shared = &mut waiting => panic!("the settings have not arrived: {shared:?}"),
            greeted = &mut is_greeted => greeted.expect("the server runs"),
        }
        assert!(endpoint.try_checkout(CLIENT, false).expect("a permit").is_none(), "while it is awaited");
        drop(opening);
        assert!(endpoint.try_checkout(CLIENT, false).expect("a permit").is_none(), "its opener has left");
        waiting.await.expect("a connection of its own");
    };
    LocalSet::new().run_until(connecting).await;
    server.join().unwrap();
}

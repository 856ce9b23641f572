//! Tests of an endpoint that allows no streams, and then sends no settings.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;

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

#[tokio::test]
async fn endpoint_without_settings_does_not_block_later_requests() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let SocketAddr::V4(address) = listener.local_addr().unwrap() else { panic!("not IPv4") };
    let server = thread::spawn(move || serve(&listener));
    let mut settings = settings(&[(&address.ip().to_string(), address.port())]);
    (settings.http2, settings.connect_timeout) = (true, Duration::from_millis(100));
    settings.limits = CircuitBreakerLimits { connections: 8, pending: 8, requests: 8, ..settings.limits };
    let upstream = upstream(settings);
    let endpoint = upstream.pick(&[]).expect("an endpoint");
    let connecting = async {
        let line = endpoint.connect(CLIENT, false).await.expect("a connection");
        line.allows_upgrade().await;
        assert!(endpoint.try_checkout(CLIENT, false).expect("a permit").is_none(), "it allows no streams");
        drop(line);
        endpoint.tick_second();
        let silent = endpoint.connect(CLIENT, false).await;
        assert!(matches!(silent, Err(UpstreamError::ConnectTimeout)), "{silent:?}");
        endpoint.connect(CLIENT, false).await.expect("a usable connection");
    };
    LocalSet::new().run_until(connecting).await;
    server.join().unwrap();
}

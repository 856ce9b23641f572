//! Network links: with a delay, by which bytes arrive later in both directions, or with a cut, during which none do.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use super::wait;

/// Starts a link to `backend`, which runs until the end of the test process; returns its address. Bytes arrive after
/// `delay`.
pub(crate) fn start(backend: SocketAddr, delay: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            if connect(client, backend, delay).is_err() {
                return;
            }
        }
    });
    address
}

/// Starts a link to `backend` that forwards nothing while the returned value is true.
pub(crate) fn start_with_cut(backend: SocketAddr) -> (SocketAddr, Arc<AtomicBool>) {
    start_slow_with_cut(backend, Duration::ZERO)
}

/// Starts a link to `backend` by which bytes arrive after `delay`, and none while the returned value is true.
pub(crate) fn start_slow_with_cut(backend: SocketAddr, delay: Duration) -> (SocketAddr, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, is_cut) = (listener.local_addr().unwrap(), Arc::new(AtomicBool::new(false)));
    let cut = Arc::clone(&is_cut);
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            if connect_with_cut(client, backend, delay, &cut).is_err() {
                return;
            }
        }
    });
    (address, is_cut)
}

/// Connects `client` to `backend`.
pub(super) fn connect(client: TcpStream, backend: SocketAddr, delay: Duration) -> std::io::Result<()> {
    connect_with_cut(client, backend, delay, &Arc::default())
}

fn connect_with_cut(
    client: TcpStream,
    backend: SocketAddr,
    delay: Duration,
    is_cut: &Arc<AtomicBool>,
) -> std::io::Result<()> {
    let server = TcpStream::connect(backend)?;
    forward(client.try_clone()?, server.try_clone()?, delay, Arc::clone(is_cut));
    forward(server, client, delay, Arc::clone(is_cut));
    Ok(())
}

fn forward(mut from: TcpStream, mut to: TcpStream, delay: Duration, is_cut: Arc<AtomicBool>) {
    let (delayed, arriving) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        let mut buffer = [0; 16 * 1024];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            if delayed.send((wait::now() + delay, buffer[..length].to_vec())).is_err() {
                return;
            }
        }
    });
    thread::spawn(move || {
        for (at, bytes) in arriving {
            wait::pause(at.saturating_duration_since(wait::now()));
            wait::until_true("the end of the cut", || !is_cut.load(Ordering::SeqCst));
            if to.write_all(&bytes).is_err() {
                return;
            }
        }
        // The connection may be closed already.
        let _ = to.shutdown(Shutdown::Write);
    });
}

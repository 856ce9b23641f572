//! Network link that accepts connections, and forwards nothing on those that begin while its gate is closed.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::slow_link;

/// The link; it runs until the end of the test process.
#[derive(Debug)]
pub(crate) struct GatedLink {
    address: SocketAddr,
    is_open: Arc<AtomicBool>,
    held: Arc<Mutex<Vec<TcpStream>>>,
}

impl GatedLink {
    /// Starts a link to `backend` whose gate is open.
    pub(crate) fn start(backend: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (is_open, held) = (Arc::new(AtomicBool::new(true)), Arc::new(Mutex::new(Vec::new())));
        let (gate, holds) = (Arc::clone(&is_open), Arc::clone(&held));
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                match gate.load(Ordering::SeqCst) {
                    true => slow_link::connect(client, backend, Duration::ZERO).unwrap(),
                    false => holds.lock().unwrap().push(client),
                }
            }
        });
        Self { address, is_open, held }
    }

    /// Returns its port on the loopback interface.
    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Opens or closes the gate for the connections that follow.
    pub(crate) fn set_open(&self, is_open: bool) {
        self.is_open.store(is_open, Ordering::SeqCst);
    }

    /// Returns the number of connections that began while the gate was closed.
    pub(crate) fn held(&self) -> usize {
        self.held.lock().unwrap().len()
    }
}

//! An HTTP/2 upstream at the frame level, which can send what no library sends.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use super::frames::{ACK, Frame, FrameConnection, HEADERS, PING, SETTINGS, frame};

type FramesByConnection = Arc<Mutex<Vec<Vec<Frame>>>>;

/// The upstream; it runs until the end of the test process.
#[derive(Debug)]
pub(crate) struct FrameOrigin {
    address: SocketAddr,
    received: FramesByConnection,
}

impl FrameOrigin {
    /// Announces `values`, acknowledges SETTINGS and PING, and sends what `script` returns for each other frame. The
    /// script's second argument is the number of requests before, on all connections.
    pub(crate) fn start(
        values: &[(u16, u32)],
        script: impl Fn(&Frame, usize) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let received = FramesByConnection::default();
        let (shared, values) = (received.clone(), values.to_vec());
        let (script, requests) = (Arc::new(script), Arc::new(AtomicUsize::new(0)));
        thread::spawn(move || {
            for (index, stream) in listener.incoming().map_while(Result::ok).enumerate() {
                shared.lock().unwrap().push(Vec::new());
                // A connection can end before its preface.
                let Ok(mut connection) = FrameConnection::accept(stream, &values) else { continue };
                let (script, requests, shared) = (script.clone(), requests.clone(), shared.clone());
                thread::spawn(move || {
                    while let Some(frame) = connection.next_frame() {
                        shared.lock().unwrap()[index].push(frame.clone());
                        connection.send(reply(&frame, &*script, &requests));
                    }
                });
            }
        });
        Self { address, received }
    }

    /// Returns its address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the frames received so far, by connection.
    pub(crate) fn received(&self) -> Vec<Vec<Frame>> {
        self.received.lock().unwrap().clone()
    }
}

fn reply(
    received: &Frame,
    script: &(impl Fn(&Frame, usize) -> Vec<u8> + ?Sized),
    requests: &AtomicUsize,
) -> Vec<u8> {
    match received.kind {
        SETTINGS | PING if received.flags & ACK != 0 => Vec::new(),
        SETTINGS => frame(SETTINGS, ACK, 0, &[]),
        PING => frame(PING, ACK, 0, &received.payload),
        HEADERS => script(received, requests.fetch_add(1, Ordering::SeqCst)),
        _ => script(received, requests.load(Ordering::SeqCst)),
    }
}

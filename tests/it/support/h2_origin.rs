//! An HTTP/2 upstream with prior knowledge, based on the `h2` crate.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::Request;
use tokio::net::TcpListener;

/// Handling of one stream.
type HandlerFuture = Pin<Box<dyn Future<Output = Result<(), h2::Error>> + Send>>;
/// Handler of all streams.
type StreamHandler = dyn Fn(Request<RecvStream>, SendResponse<Bytes>) -> HandlerFuture + Send + Sync;

/// The upstream; it runs until the end of the test process.
#[derive(Debug)]
pub(crate) struct H2Origin {
    address: SocketAddr,
    counts: Arc<StreamCounts>,
}

#[derive(Debug, Default)]
struct StreamCounts {
    connections: AtomicUsize,
    streams: AtomicUsize,
    resets: AtomicUsize,
}

impl H2Origin {
    /// Handles every stream with `script`. A connection that has had `max_streams` streams is closed with
    /// GOAWAY.
    pub(crate) fn start<F>(
        max_streams: Option<usize>,
        script: impl Fn(Request<RecvStream>, SendResponse<Bytes>) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<(), h2::Error>> + Send + 'static,
    {
        Self::start_with(h2::server::Builder::new(), max_streams, script)
    }

    /// Starts such an upstream that announces extended CONNECT (RFC 8441 section 3).
    pub(crate) fn with_extended_connect<F>(
        script: impl Fn(Request<RecvStream>, SendResponse<Bytes>) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<(), h2::Error>> + Send + 'static,
    {
        let mut builder = h2::server::Builder::new();
        builder.enable_connect_protocol();
        Self::start_with(builder, None, script)
    }

    fn start_with<F>(
        builder: h2::server::Builder,
        max_streams: Option<usize>,
        script: impl Fn(Request<RecvStream>, SendResponse<Bytes>) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<(), h2::Error>> + Send + 'static,
    {
        let script: Arc<StreamHandler> = Arc::new(move |request, respond| Box::pin(script(request, respond)));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let counts = Arc::new(StreamCounts::default());
        let counted = Arc::clone(&counts);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).unwrap();
                while let Ok((stream, _)) = listener.accept().await {
                    counted.connections.fetch_add(1, Ordering::SeqCst);
                    let serving = serve(
                        builder.clone(),
                        stream,
                        max_streams,
                        Arc::clone(&script),
                        Arc::clone(&counted),
                    );
                    tokio::spawn(serving);
                }
            });
        });
        Self { address, counts }
    }

    /// Responds to each request with `hello`.
    pub(crate) fn hello() -> Self {
        Self::start(None, |_, mut respond| async move {
            let response = http::Response::builder().header("content-length", "5").body(()).unwrap();
            respond.send_response(response, false)?.send_data(Bytes::from_static(b"hello"), true)
        })
    }

    /// Returns its address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.counts.connections.load(Ordering::SeqCst)
    }

    /// Returns the number of streams so far.
    pub(crate) fn streams(&self) -> usize {
        self.counts.streams.load(Ordering::SeqCst)
    }

    /// Returns the number of streams whose handler failed, as it does when the peer resets the stream.
    pub(crate) fn resets(&self) -> usize {
        self.counts.resets.load(Ordering::SeqCst)
    }
}

async fn serve(
    builder: h2::server::Builder,
    stream: tokio::net::TcpStream,
    max_streams: Option<usize>,
    script: Arc<StreamHandler>,
    counts: Arc<StreamCounts>,
) {
    let Ok(mut connection) = builder.handshake(stream).await else { return };
    let mut served = 0;
    while let Some(Ok((request, respond))) = connection.accept().await {
        counts.streams.fetch_add(1, Ordering::SeqCst);
        served += 1;
        if max_streams == Some(served) {
            connection.graceful_shutdown();
        }
        let (serving, counts) = (script(request, respond), Arc::clone(&counts));
        tokio::spawn(async move {
            if serving.await.is_err() {
                counts.resets.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
}

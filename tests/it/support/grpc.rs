//! A gRPC server for services that a test implements.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hyper::body::Incoming;
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::oneshot;
use tonic::body::Body;
use tonic::codegen::Service;

/// The server; it ends when dropped.
#[derive(Debug)]
pub(crate) struct GrpcServer {
    pub(crate) address: SocketAddr,
    accepted: Arc<AtomicUsize>,
    _end: oneshot::Sender<()>,
}

impl GrpcServer {
    /// Serves on a port chosen by the system, on a thread of its own.
    pub(crate) fn start<S>(service: S) -> Self
    where
        S: Service<http::Request<Incoming>, Response = http::Response<Body>, Error = Infallible>,
        S: Clone + Send + 'static,
        S::Future: Send,
    {
        let (end, ended) = oneshot::channel::<()>();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let accepted = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&accepted);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let serving = async {
                    while let Ok((stream, _)) = listener.accept().await {
                        count.fetch_add(1, Ordering::SeqCst);
                        let service = service.clone();
                        let answer = service_fn(move |request| service.clone().call(request));
                        let io = TokioIo::new(stream);
                        tokio::spawn(Builder::new(TokioExecutor::new()).serve_connection(io, answer));
                    }
                };
                tokio::select! {
                    () = serving => {}
                    _ = ended => {}
                }
            });
        });
        Self { address, accepted, _end: end }
    }

    /// Returns the number of connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

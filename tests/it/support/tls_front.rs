//! TLS termination in front of a plaintext upstream: it forwards bytes in both directions and records the handshakes.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// What a client sent in a handshake.
#[derive(Clone, Debug)]
pub(crate) struct HandshakeInfo {
    /// Server name (SNI).
    pub(crate) name: Option<String>,
    /// Negotiated protocol (ALPN).
    pub(crate) protocol: Option<String>,
    /// Client certificate.
    pub(crate) certificate: Option<CertificateDer<'static>>,
}

/// An action on all open connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TlsCommand {
    /// Updates the session keys.
    Rekey,
    /// Closes with close_notify.
    Close,
    /// Closes without close_notify, as if the machine had failed.
    Abort,
}

#[derive(Debug)]
struct TlsFrontState {
    config: Mutex<Arc<ServerConfig>>,
    handshakes: Mutex<Vec<HandshakeInfo>>,
    commands: broadcast::Sender<TlsCommand>,
    backend: SocketAddr,
}

/// The TLS front; it runs until the end of the test process.
#[derive(Debug)]
pub(crate) struct TlsFront {
    address: SocketAddr,
    shared: Arc<TlsFrontState>,
}

impl TlsFront {
    /// Starts a front for `backend`.
    pub(crate) fn start(config: Arc<ServerConfig>, backend: SocketAddr) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(TlsFrontState {
            config: Mutex::new(config),
            handshakes: Mutex::default(),
            commands: broadcast::Sender::new(16),
            backend,
        });
        let serving = Arc::clone(&shared);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).unwrap();
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(serve(stream, Arc::clone(&serving)));
                }
            });
        });
        Self { address, shared }
    }

    /// Returns its port on the loopback interface.
    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Returns all completed handshakes.
    pub(crate) fn handshakes(&self) -> Vec<HandshakeInfo> {
        self.shared.handshakes.lock().unwrap().clone()
    }

    /// Applies an action to every open connection.
    pub(crate) fn send_command(&self, order: TlsCommand) {
        self.shared.commands.send(order).unwrap();
    }

    /// Replaces the configuration for new connections.
    pub(crate) fn replace(&self, config: Arc<ServerConfig>) {
        *self.shared.config.lock().unwrap() = config;
    }
}

async fn serve(stream: TcpStream, shared: Arc<TlsFrontState>) {
    let mut orders = shared.commands.subscribe();
    let config = Arc::clone(&shared.config.lock().unwrap());
    let Ok(mut client) = TlsAcceptor::from(config).accept(stream).await else { return };
    let session = client.get_ref().1;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    shared.handshakes.lock().unwrap().push(HandshakeInfo {
        name: session.server_name().map(str::to_owned),
        protocol: session.alpn_protocol().map(text),
        certificate: session.peer_certificates().and_then(|chain| chain.first().cloned()),
    });
    let Ok(mut backend) = TcpStream::connect(shared.backend).await else { return };
    let (mut upload, mut answer) = (vec![0; 16 * 1024], vec![0; 16 * 1024]);
    let mut sends = true;
    loop {
        let carried = tokio::select! {
            read = client.read(&mut upload), if sends => match read {
                Ok(0) => {
                    sends = false;
                    backend.shutdown().await
                }
                Ok(read) => backend.write_all(&upload[..read]).await,
                Err(error) => Err(error),
            },
            read = backend.read(&mut answer) => match read {
                Ok(0) => {
                    let _ = client.shutdown().await;
                    return;
                }
                Ok(read) => write(&mut client, &answer[..read]).await,
                Err(error) => Err(error),
            },
            order = orders.recv() => match order {
                Ok(TlsCommand::Rekey) => {
                    client.get_mut().1.refresh_traffic_keys().unwrap();
                    client.flush().await
                }
                Ok(TlsCommand::Close) => {
                    let _ = client.shutdown().await;
                    return;
                }
                Ok(TlsCommand::Abort) | Err(_) => return,
            },
        };
        if carried.is_err() {
            return;
        }
    }
}

async fn write(client: &mut TlsStream<TcpStream>, bytes: &[u8]) -> std::io::Result<()> {
    client.write_all(bytes).await?;
    client.flush().await
}

//! A connection of gRPC to somebody else: a management server, or another rate limit service.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use tonic::codegen::Service;
use tonic::transport::{Channel, Endpoint};

use crate::tls::Protocol;
use crate::tls::client::Client;
use crate::transport::Transport;

/// For a connection to stand, TLS included.
const CONNECT: Duration = Duration::from_secs(5);

/// Whoever answers no ping has gone without a word.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Where somebody is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// At a port of a host, by name or address.
    Tcp(Box<str>, u16),
    /// At a socket in the file system.
    Unix(Box<std::path::Path>),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A channel to `place`, which connects when it is first needed and again when it has to; over TLS where there is a
/// client of that. Needs a runtime to run on.
///
/// # Errors
/// If the name of the host cannot be one.
pub fn open(place: &Place, tls: Option<Arc<Client>>) -> Result<Channel, tonic::transport::Error> {
    let authority = match place {
        Place::Tcp(..) => place.to_string(),
        Place::Unix(_) => "localhost".to_owned(),
    };
    let endpoint = Endpoint::from_shared(format!("http://{authority}"))?
        .connect_timeout(CONNECT)
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true);
    let connector = Connector { place: place.clone(), tls };
    Ok(endpoint.connect_with_connector_lazy(connector))
}

#[derive(Clone, Debug)]
struct Connector {
    place: Place,
    tls: Option<Arc<Client>>,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Transport>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let Self { place, tls } = self.clone();
        Box::pin(async move { connect(&place, tls.as_deref()).await.map(TokioIo::new) })
    }
}

async fn connect(place: &Place, tls: Option<&Client>) -> io::Result<Transport> {
    let (host, stream): (&str, Transport) = match place {
        Place::Tcp(host, port) => (host, Transport::connect_tcp((&**host, *port)).await?),
        Place::Unix(path) => ("localhost", Transport::connect_unix(path).await?),
    };
    match tls {
        None => Ok(stream),
        Some(client) => match client.connect(stream, host, Protocol::Http2).await {
            Ok((stream, _)) => Ok(stream.into()),
            Err(failure) => Err(io::Error::other(failure)),
        },
    }
}

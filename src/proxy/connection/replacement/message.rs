//! What the new process has to know of a connection.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use http::HeaderValue;
use serde::{Deserialize, Serialize};

use crate::proxy::connection::DownstreamConnection;
use crate::proxy::headers::PeerTls;
use weir_net::listener::socket::{AcceptedSocket, MovedSocket};
use weir_net::tls::AlpnProtocol;
use weir_policy::identify::certificate::ClientCertificate;

/// A connection, as it is described to the new process.
#[derive(Debug, Serialize)]
pub(super) struct MovingConnection<'a> {
    listener: &'a str,
    peer: IpAddr,
    tls: Option<MovedTls>,
    /// Whether the old process passes bytes on, and the connection has to end with it.
    stays_behind: bool,
}

/// The same, as the new process reads it.
#[derive(Debug, Deserialize)]
struct Description {
    listener: Box<str>,
    peer: IpAddr,
    tls: Option<MovedTls>,
    stays_behind: bool,
}

/// What TLS states about a client.
#[derive(Debug, Serialize, Deserialize)]
struct MovedTls {
    certificate: Option<MovedCertificate>,
    forwarded: Option<Vec<u8>>,
    http2: Option<bool>,
}

#[derive(Debug, Serialize, Deserialize)]
struct MovedCertificate {
    spiffe: Option<Box<str>>,
    subject: Option<Box<str>>,
    dns: Vec<Box<str>>,
}

/// A connection that has arrived from the old process.
#[derive(Debug)]
pub struct ArrivedConnection {
    /// Name of its listener.
    pub(in crate::proxy) listener: Box<str>,
    pub(in crate::proxy) socket: AcceptedSocket,
    pub(in crate::proxy) tls: Option<Box<PeerTls>>,
    /// Whether the old process passes its bytes on.
    pub(in crate::proxy) stays_behind: bool,
}

impl<'a> MovingConnection<'a> {
    pub(super) fn new(connection: &DownstreamConnection, listener: &'a str) -> Self {
        let tls = connection.tls.as_deref().map(MovedTls::new);
        Self { listener, peer: connection.peer, tls, stays_behind: false }
    }

    pub(super) fn stays_behind(&mut self) {
        self.stays_behind = true;
    }

    /// Returns the message, which ends with what the client has sent.
    pub(super) fn encode(&self, read: &[u8]) -> io::Result<Vec<u8>> {
        let description = serde_json::to_vec(self)?;
        let length = u32::try_from(description.len()).map_err(io::Error::other)?;
        Ok([&length.to_le_bytes(), &*description, read].concat())
    }
}

impl ArrivedConnection {
    /// Reads the message about a connection.
    ///
    /// # Errors
    /// If it is not valid.
    pub fn new(message: &[u8], socket: OwnedFd) -> io::Result<Self> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        let (length, rest) = message.split_first_chunk().ok_or_else(invalid)?;
        let length = u32::from_le_bytes(*length) as usize;
        let (description, read) = rest.split_at_checked(length).ok_or_else(invalid)?;
        let Description { listener, peer, tls, stays_behind } = serde_json::from_slice(description)?;
        let tls = tls.map(|tls| Box::new(tls.into_peer()));
        let moved = MovedSocket { socket, read: read.into(), peer: SocketAddr::new(peer, 0) };
        Ok(Self { listener, socket: AcceptedSocket::Moved(Box::new(moved)), tls, stays_behind })
    }
}

impl MovedTls {
    fn new(tls: &PeerTls) -> Self {
        let certificate = tls.certificate.as_ref().map(|certificate| MovedCertificate {
            spiffe: certificate.spiffe.clone(),
            subject: certificate.subject.clone(),
            dns: certificate.dns.clone(),
        });
        let forwarded = tls.forwarded.as_ref().map(|value| value.as_bytes().to_vec());
        Self { certificate, forwarded, http2: tls.protocol.map(|protocol| protocol == AlpnProtocol::Http2) }
    }

    fn into_peer(self) -> PeerTls {
        let certificate = self
            .certificate
            .map(|MovedCertificate { spiffe, subject, dns }| ClientCertificate { spiffe, subject, dns });
        PeerTls {
            certificate,
            forwarded: self.forwarded.and_then(|value| HeaderValue::from_bytes(&value).ok()),
            protocol: self.http2.map(|is_http2| match is_http2 {
                true => AlpnProtocol::Http2,
                false => AlpnProtocol::Http1,
            }),
        }
    }
}

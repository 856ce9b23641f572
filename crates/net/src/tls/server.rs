//! Server side of TLS: certificates, client verification, and the result of a handshake.
//!
//! Sessions are resumed with tickets (RFC 5077, RFC 8446 section 2.2), which every worker can decrypt and none stores.
//! A ticket contains the client's certificate, which is not verified again. So tickets are only valid for the listener
//! that issued them, and only until its client verification changes.

mod certificate_resolver;

use std::io;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::server::{NoClientAuth, ProducesTickets, WebPkiClientVerifier};
use rustls::{ServerConfig, ServerConnection, version};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use self::certificate_resolver::CertificateResolver;
use super::identity::Identity;
use super::key_pair::CertificateKeyPair;
use super::pem::Authorities;
use super::{AlpnProtocol, SessionStart, provider};

/// Supported application protocols, in order of preference.
const PROTOCOLS: [AlpnProtocol; 2] = [AlpnProtocol::Http2, AlpnProtocol::Http1];

/// TLS settings of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsServerSettings {
    /// Certificates; the first is the default.
    pub key_pairs: Vec<CertificateKeyPair>,
    /// How clients are verified.
    pub client_verification: ClientVerification,
    /// Maximum number of concurrent handshakes per worker.
    pub max_handshakes: usize,
}

/// How clients are verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientVerification {
    /// No certificate is requested.
    Disabled,
    /// Certificates are requested (mTLS). One that these authorities did not issue ends the connection.
    Enabled {
        /// Certificate authorities of clients.
        authorities: Arc<Authorities>,
        /// File they were read from, for display.
        file: Box<str>,
        /// Whether a client without a certificate is rejected.
        required: bool,
    },
}

impl ClientVerification {
    /// Whether clients are verified in the same way, regardless of the files' names.
    fn trusts_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Disabled, Self::Disabled) => true,
            (
                Self::Enabled { authorities, required, .. },
                Self::Enabled { authorities: others, required: other, .. },
            ) => authorities == others && required == other,
            (Self::Disabled, Self::Enabled { .. }) | (Self::Enabled { .. }, Self::Disabled) => false,
        }
    }
}

/// TLS server for one set of settings.
#[derive(Debug)]
pub struct TlsServer {
    settings: TlsServerSettings,
    config: Arc<ServerConfig>,
    tickets: Arc<dyn ProducesTickets>,
}

impl TlsServer {
    /// Creates a server. `before` is the server that it replaces; its tickets stay valid if clients are verified in the
    /// same way.
    ///
    /// # Errors
    /// If the system provides no random numbers, or the settings are unusable.
    pub fn new(settings: TlsServerSettings, before: Option<&Self>) -> Result<Self, rustls::Error> {
        let kept = before
            .filter(|before| before.settings.client_verification.trusts_same(&settings.client_verification));
        let tickets = match kept {
            Some(before) => Arc::clone(&before.tickets),
            None => Ticketer::new()?,
        };
        let verifier = match &settings.client_verification {
            ClientVerification::Disabled => Arc::new(NoClientAuth),
            ClientVerification::Enabled { authorities, required, .. } => {
                let builder =
                    WebPkiClientVerifier::builder_with_provider(Arc::clone(&authorities.store), provider());
                let builder = if *required { builder } else { builder.allow_unauthenticated() };
                builder.build().map_err(|error| rustls::Error::General(error.to_string()))?
            }
        };
        let pairs = settings.key_pairs.iter();
        let choice =
            CertificateResolver::new(pairs.map(|pair| (&pair.chain.info, Arc::clone(&pair.certified))));
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&version::TLS13, &version::TLS12])?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(choice));
        config.alpn_protocols = PROTOCOLS.map(AlpnProtocol::token).to_vec();
        config.ticketer = Arc::clone(&tickets);
        Ok(Self { settings, config: Arc::new(config), tickets })
    }

    pub fn settings(&self) -> &TlsServerSettings {
        &self.settings
    }

    /// Performs a handshake over `stream`.
    ///
    /// # Errors
    /// [`ServerHandshakeError`]; an alert has been sent to the client if possible.
    pub async fn accept<S>(&self, stream: S) -> Result<(TlsStream<S>, TlsSession), ServerHandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let accepted = TlsAcceptor::from(Arc::clone(&self.config)).accept(stream).await;
        let stream = accepted.map_err(|error| ServerHandshakeError::from_io(&error))?;
        let session =
            TlsSession::from_connection(stream.get_ref().1).ok_or(ServerHandshakeError::ClientCertificate)?;
        Ok((stream, session))
    }
}

/// Result of a handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSession {
    /// Identity of the client, if it presented a valid certificate.
    pub identity: Option<Identity>,
    /// How the session began.
    pub start: SessionStart,
    /// Negotiated application protocol; `None` if the client offered none.
    pub protocol: Option<AlpnProtocol>,
}

impl TlsSession {
    /// Returns `None` if the client's certificate cannot be parsed: an incomplete identity must not be used.
    fn from_connection(connection: &ServerConnection) -> Option<Self> {
        let certificate = connection.peer_certificates().and_then(<[_]>::first);
        let identity = certificate.map(|der| Identity::from_der(der)).transpose().ok()?;
        Some(Self {
            identity,
            start: SessionStart::from_handshake(connection.handshake_kind()),
            protocol: AlpnProtocol::from_alpn(connection.alpn_protocol()),
        })
    }
}

/// Why a handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServerHandshakeError {
    /// The client closed the connection.
    Closed,
    /// The client's data is not TLS.
    NotTls,
    /// There is no common version, cipher suite or protocol.
    Incompatible,
    /// The client's certificate is missing or invalid.
    ClientCertificate,
    /// The client sent an alert: it rejects the server's certificate, or found another error.
    AlertReceived,
    TimedOut,
    /// It was aborted in favour of a queued handshake, or timed out in the queue.
    Crowded,
    /// Any other failure.
    Other,
}

impl ServerHandshakeError {
    /// All failures.
    pub const ALL: [Self; 8] = [
        Self::Closed,
        Self::NotTls,
        Self::Incompatible,
        Self::ClientCertificate,
        Self::AlertReceived,
        Self::TimedOut,
        Self::Crowded,
        Self::Other,
    ];

    /// Returns the label value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::NotTls => "not_tls",
            Self::Incompatible => "incompatible",
            Self::ClientCertificate => "client_certificate",
            Self::AlertReceived => "refused",
            Self::TimedOut => "timed_out",
            Self::Crowded => "crowded",
            Self::Other => "other",
        }
    }

    fn from_io(error: &io::Error) -> Self {
        use rustls::Error as Tls;
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Tls>());
        match inner {
            None => Self::Closed,
            Some(Tls::InvalidMessage(_) | Tls::PeerSentOversizedRecord) => Self::NotTls,
            Some(Tls::PeerIncompatible(_) | Tls::NoApplicationProtocol) => Self::Incompatible,
            Some(Tls::NoCertificatesPresented | Tls::InvalidCertificate(_)) => Self::ClientCertificate,
            Some(Tls::AlertReceived(_)) => Self::AlertReceived,
            Some(_) => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests;

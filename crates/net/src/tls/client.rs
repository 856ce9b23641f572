//! Client side of TLS: trust, the client certificate, and the result of a handshake.
//!
//! Sessions are resumed (RFC 8446 section 2.2) as long as trust and client certificate are unchanged: each
//! [`TlsClient`] has a bounded session cache of its own, which all workers share.

mod error;
mod pinned;
mod skip_verification;

use std::sync::Arc;

use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::ServerName;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, version};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

pub use self::error::{ClientHandshakeError, ClientHandshakeErrorKind};
use self::pinned::PinnedServerVerification;
use self::skip_verification::SkipServerVerification;
use super::key_pair::CertificateKeyPair;
use super::pem::Authorities;
use super::{AlpnProtocol, SessionStart, provider};

/// Maximum number of server names in the session cache of each protocol, with a few sessions for each name.
const MAX_SESSION_NAMES: usize = 256;

/// Settings of TLS to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsClientSettings {
    /// How server certificates are verified.
    pub verification: ServerVerification,
    /// Client certificate, presented if the server requests one.
    pub key_pair: Option<CertificateKeyPair>,
    /// Server name to send and to verify, instead of the connection's host.
    pub name: Option<ServerName<'static>>,
}

/// How a server's certificate is verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerVerification {
    /// By the system's certificate authorities.
    System(Arc<Authorities>),
    /// By these certificate authorities.
    Configured {
        /// Certificate authorities.
        authorities: Arc<Authorities>,
        /// File they were read from, for display.
        file: Box<str>,
    },
    /// Not at all: every certificate is accepted.
    Disabled,
}

/// TLS client for one set of settings.
#[derive(Debug)]
pub struct TlsClient {
    settings: TlsClientSettings,
    http1: Arc<ClientConfig>,
    http2: Arc<ClientConfig>,
    without_alpn: Arc<ClientConfig>,
}

impl TlsClient {
    /// Creates a client with these settings and an empty session cache.
    ///
    /// # Errors
    /// If the settings are unusable, such as an empty set of authorities.
    pub fn new(settings: TlsClientSettings) -> Result<Self, rustls::Error> {
        let http1 = config(&settings, Some(AlpnProtocol::Http1))?;
        let http2 = config(&settings, Some(AlpnProtocol::Http2))?;
        let unnamed = config(&settings, None)?;
        Ok(Self { settings, http1, http2, without_alpn: unnamed })
    }

    pub fn settings(&self) -> &TlsClientSettings {
        &self.settings
    }

    /// Performs a handshake over `stream` with `host`, a name or an address, for `protocol`. A name is sent as SNI (RFC
    /// 6066 section 3), an address is not. The certificate must contain either.
    ///
    /// # Errors
    /// [`ClientHandshakeError`]; an alert has been sent to the server if possible.
    pub async fn connect<S>(
        &self,
        stream: S,
        host: &str,
        protocol: AlpnProtocol,
    ) -> Result<(TlsStream<S>, SessionStart), ClientHandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let config = match protocol {
            AlpnProtocol::Http1 => &self.http1,
            AlpnProtocol::Http2 => &self.http2,
        };
        let stream = self.handshake(stream, host, config).await?;
        let session = stream.get_ref().1;
        // A server that selects no protocol uses HTTP/1.1 (RFC 9113 section 3.2).
        if protocol == AlpnProtocol::Http2
            && AlpnProtocol::from_alpn(session.alpn_protocol()) != Some(protocol)
        {
            return Err(ClientHandshakeError::protocol_mismatch());
        }
        let start = SessionStart::from_handshake(session.handshake_kind());
        Ok((stream, start))
    }

    /// As [`Self::connect`], without ALPN, for protocols such as that of Redis.
    ///
    /// # Errors
    /// As for [`Self::connect`].
    pub async fn connect_without_alpn<S>(
        &self,
        stream: S,
        host: &str,
    ) -> Result<TlsStream<S>, ClientHandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        self.handshake(stream, host, &self.without_alpn).await
    }

    async fn handshake<S>(
        &self,
        stream: S,
        host: &str,
        config: &Arc<ClientConfig>,
    ) -> Result<TlsStream<S>, ClientHandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let name = match &self.settings.name {
            Some(name) => name.clone(),
            None => {
                ServerName::try_from(host.to_owned()).map_err(|_| ClientHandshakeError::invalid_name(host))?
            }
        };
        let connected = TlsConnector::from(Arc::clone(config)).connect(name, stream).await;
        connected.map_err(|error| ClientHandshakeError::from_io(&error))
    }
}

/// Returns the verifier of certificates that these authorities have issued.
fn chains(authorities: &Authorities) -> Result<Arc<WebPkiServerVerifier>, rustls::Error> {
    let roots = Arc::clone(&authorities.store);
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider()).build();
    verifier.map_err(|error| rustls::Error::General(error.to_string()))
}

fn config(
    settings: &TlsClientSettings,
    protocol: Option<AlpnProtocol>,
) -> Result<Arc<ClientConfig>, rustls::Error> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13, &version::TLS12])?;
    let builder = match &settings.verification {
        ServerVerification::System(authorities) => builder.with_webpki_verifier(chains(authorities)?),
        ServerVerification::Configured { authorities, .. } => {
            let pinned = PinnedServerVerification::new(chains(authorities)?, Arc::clone(authorities));
            builder.dangerous().with_custom_certificate_verifier(Arc::new(pinned))
        }
        ServerVerification::Disabled => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(SkipServerVerification::new()))
        }
    };
    let mut config = match &settings.key_pair {
        Some(pair) => {
            let shown = SingleCertAndKey::from(Arc::clone(&pair.certified));
            builder.with_client_cert_resolver(Arc::new(shown))
        }
        None => builder.with_no_client_auth(),
    };
    // Offers one protocol only. The configuration determines it, and a server that does not support it then fails the
    // handshake instead of sending unexpected responses.
    config.alpn_protocols = protocol.map(AlpnProtocol::token).into_iter().collect();
    config.resumption = Resumption::in_memory_sessions(MAX_SESSION_NAMES);
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests;

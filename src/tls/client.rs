//! The client's side: whom we believe to be the service that we mean, what we show it, and a handshake's outcome.
//!
//! A session goes on where an earlier one ended (RFC 8446 section 2.2) as long as neither whom we believe nor what we
//! show has changed: each [`Client`] remembers its own, for all workers, and no more than a bounded number.

mod failure;
mod trusting;

use std::sync::Arc;

use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::ServerName;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, version};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

pub use self::failure::{Failure, Reason};
use self::trusting::Trusting;
use super::pair::Pair;
use super::pem::Authorities;
use super::{Protocol, SessionStart, provider};

/// Names of services whose sessions are remembered, for each protocol; of each of them a few sessions.
const MOST_NAMES: usize = 256;

/// TLS towards a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whom we believe.
    pub trust: Trust,
    /// What we show if we are asked.
    pub pair: Option<Pair>,
    /// Whom we ask for, whatever address the connection goes to.
    pub name: Option<ServerName<'static>>,
}

/// Who may say that a service is the one we mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Those whom this system believes.
    System(Arc<Authorities>),
    /// Those who are named.
    Named {
        /// Who.
        authorities: Arc<Authorities>,
        /// The file they were read from, for people.
        file: Box<str>,
    },
    /// The service itself: whoever answers is believed.
    Anybody,
}

/// TLS as it is spoken to a service.
#[derive(Debug)]
pub struct Client {
    settings: Settings,
    http1: Arc<ClientConfig>,
    http2: Arc<ClientConfig>,
    unnamed: Arc<ClientConfig>,
}

impl Client {
    /// A client with these settings, without sessions to go on with.
    ///
    /// # Errors
    /// If nothing can be made of them, as without any authority.
    pub fn new(settings: Settings) -> Result<Self, rustls::Error> {
        let http1 = config(&settings, Some(Protocol::Http1))?;
        let http2 = config(&settings, Some(Protocol::Http2))?;
        let unnamed = config(&settings, None)?;
        Ok(Self { settings, http1, http2, unnamed })
    }

    /// What it was made of.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Shakes hands over `stream` with `host`, a name or an address, to speak `protocol`. A name is sent (RFC 6066
    /// section 3), an address is not; either has to be in the certificate.
    ///
    /// # Errors
    /// [`Failure`], of which the service has been told as far as it could be.
    pub async fn connect<S>(
        &self,
        stream: S,
        host: &str,
        protocol: Protocol,
    ) -> Result<(TlsStream<S>, SessionStart), Failure>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let config = match protocol {
            Protocol::Http1 => &self.http1,
            Protocol::Http2 => &self.http2,
        };
        let stream = self.shake_hands(stream, host, config).await?;
        let session = stream.get_ref().1;
        // Who does not say what it speaks speaks HTTP/1.1 (RFC 9113 section 3.2).
        if protocol == Protocol::Http2 && Protocol::spoken(session.alpn_protocol()) != Some(protocol) {
            return Err(Failure::of_protocol());
        }
        let start = SessionStart::of(session.handshake_kind());
        Ok((stream, start))
    }

    /// The same for a protocol that is not negotiated, such as that of Redis.
    ///
    /// # Errors
    /// As of [`Self::connect`].
    pub async fn connect_unnamed<S>(&self, stream: S, host: &str) -> Result<TlsStream<S>, Failure>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        self.shake_hands(stream, host, &self.unnamed).await
    }

    async fn shake_hands<S>(
        &self,
        stream: S,
        host: &str,
        config: &Arc<ClientConfig>,
    ) -> Result<TlsStream<S>, Failure>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let name = match &self.settings.name {
            Some(name) => name.clone(),
            None => ServerName::try_from(host.to_owned()).map_err(|_| Failure::of_name(host))?,
        };
        let connected = TlsConnector::from(Arc::clone(config)).connect(name, stream).await;
        connected.map_err(|error| Failure::of(&error))
    }
}

fn config(settings: &Settings, protocol: Option<Protocol>) -> Result<Arc<ClientConfig>, rustls::Error> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13, &version::TLS12])?;
    let builder = match &settings.trust {
        Trust::System(authorities) | Trust::Named { authorities, .. } => {
            let roots = Arc::clone(&authorities.store);
            let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider()).build();
            builder.with_webpki_verifier(verifier.map_err(|error| rustls::Error::General(error.to_string()))?)
        }
        Trust::Anybody => builder.dangerous().with_custom_certificate_verifier(Arc::new(Trusting::new())),
    };
    let mut config = match &settings.pair {
        Some(pair) => {
            let shown = SingleCertAndKey::from(Arc::clone(&pair.certified));
            builder.with_client_cert_resolver(Arc::new(shown))
        }
        None => builder.with_no_client_auth(),
    };
    // One protocol and not a choice: what is spoken is what the configuration says, and a service that cannot is told
    // from one that answers strangely.
    config.alpn_protocols = protocol.map(Protocol::token).into_iter().collect();
    config.resumption = Resumption::in_memory_sessions(MOST_NAMES);
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests;

//! The server's side: which certificate is shown, which clients are believed, and a handshake's outcome.
//!
//! Sessions are resumed by tickets (RFC 5077, RFC 8446 section 2.2), which all workers can read and none keeps. A
//! ticket says who the client was, and resuming believes it without a new look. So tickets hold only for the listener
//! that gave them, and only as long as it believes the same clients.

mod choice;

use std::io;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::server::{NoClientAuth, ProducesTickets, WebPkiClientVerifier};
use rustls::{ServerConfig, ServerConnection, version};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use self::choice::Choice;
use super::identity::Identity;
use super::pair::Pair;
use super::pem::Authorities;
use super::{Protocol, SessionStart, provider};

/// What clients may speak inside, the better first.
const PROTOCOLS: [Protocol; 2] = [Protocol::Http2, Protocol::Http1];

/// A listener's TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What may be shown; the first where no other fits.
    pub pairs: Vec<Pair>,
    /// Whose certificates are asked for.
    pub clients: Clients,
    /// How many handshakes a worker may have under way at once.
    pub handshakes: usize,
}

/// Who has to show a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clients {
    /// Nobody is asked.
    Anybody,
    /// All are asked. A certificate that these have not issued ends the connection.
    Verified {
        /// Who issues.
        authorities: Arc<Authorities>,
        /// The file they were read from, for people.
        file: Box<str>,
        /// Whether a client without a certificate is turned away.
        required: bool,
    },
}

impl Clients {
    /// Whether the same clients are believed, wherever that was read from.
    fn believes_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Anybody, Self::Anybody) => true,
            (
                Self::Verified { authorities, required, .. },
                Self::Verified { authorities: others, required: other, .. },
            ) => authorities == others && required == other,
            (Self::Anybody, Self::Verified { .. }) | (Self::Verified { .. }, Self::Anybody) => false,
        }
    }
}

/// TLS as a listener speaks it.
#[derive(Debug)]
pub struct Server {
    settings: Settings,
    config: Arc<ServerConfig>,
    tickets: Arc<dyn ProducesTickets>,
}

impl Server {
    /// A server with these settings; `before` is what it replaces, whose tickets go on to hold if the same clients
    /// are believed.
    ///
    /// # Errors
    /// If the system has no random numbers to give.
    pub fn new(settings: Settings, before: Option<&Self>) -> Result<Self, rustls::Error> {
        let kept = before.filter(|before| before.settings.clients.believes_as(&settings.clients));
        let tickets = match kept {
            Some(before) => Arc::clone(&before.tickets),
            None => Ticketer::new()?,
        };
        let verifier = match &settings.clients {
            Clients::Anybody => Arc::new(NoClientAuth),
            Clients::Verified { authorities, required, .. } => {
                let builder =
                    WebPkiClientVerifier::builder_with_provider(Arc::clone(&authorities.store), provider());
                let builder = if *required { builder } else { builder.allow_unauthenticated() };
                builder.build().map_err(|error| rustls::Error::General(error.to_string()))?
            }
        };
        let pairs = settings.pairs.iter();
        let choice = Choice::new(pairs.map(|pair| (&pair.chain.facts, Arc::clone(&pair.certified))));
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&version::TLS13, &version::TLS12])?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(choice));
        config.alpn_protocols = PROTOCOLS.map(Protocol::token).to_vec();
        config.ticketer = Arc::clone(&tickets);
        Ok(Self { settings, config: Arc::new(config), tickets })
    }

    /// What it was made of.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Shakes hands over `stream`.
    ///
    /// # Errors
    /// [`Failure`], of which the client has been told as far as it could be.
    pub async fn accept<S>(&self, stream: S) -> Result<(TlsStream<S>, Session), Failure>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let accepted = TlsAcceptor::from(Arc::clone(&self.config)).accept(stream).await;
        let stream = accepted.map_err(|error| Failure::of(&error))?;
        let session = Session::of(stream.get_ref().1).ok_or(Failure::ClientCertificate)?;
        Ok((stream, session))
    }
}

/// What a handshake has come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// The client, if it has shown a certificate that holds.
    pub identity: Option<Identity>,
    /// How it began.
    pub start: SessionStart,
    /// What the client wants to speak inside; `None` where it did not say.
    pub protocol: Option<Protocol>,
}

impl Session {
    /// `None` if the client's certificate is one that we cannot read: nobody may be half known.
    fn of(connection: &ServerConnection) -> Option<Self> {
        let certificate = connection.peer_certificates().and_then(<[_]>::first);
        let identity = certificate.map(|der| Identity::of(der)).transpose().ok()?;
        Some(Self {
            identity,
            start: SessionStart::of(connection.handshake_kind()),
            protocol: Protocol::spoken(connection.alpn_protocol()),
        })
    }
}

/// Why there is no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The client has gone.
    Closed,
    /// What came is not TLS.
    NotTls,
    /// Nothing that both can speak: versions, ciphers, protocols.
    Incompatible,
    /// The client has no certificate where it must, or none that holds.
    ClientCertificate,
    /// The client does not want ours, or says that something else is wrong.
    Refused,
    /// It took too long.
    TimedOut,
    /// It had to give way to others, or found no place.
    Crowded,
    /// Anything else.
    Other,
}

impl Failure {
    /// Every failure.
    pub const ALL: [Self; 8] = [
        Self::Closed,
        Self::NotTls,
        Self::Incompatible,
        Self::ClientCertificate,
        Self::Refused,
        Self::TimedOut,
        Self::Crowded,
        Self::Other,
    ];

    /// In a word, for metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::NotTls => "not_tls",
            Self::Incompatible => "incompatible",
            Self::ClientCertificate => "client_certificate",
            Self::Refused => "refused",
            Self::TimedOut => "timed_out",
            Self::Crowded => "crowded",
            Self::Other => "other",
        }
    }

    fn of(error: &io::Error) -> Self {
        use rustls::Error as Tls;
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Tls>());
        match inner {
            None => Self::Closed,
            Some(Tls::InvalidMessage(_) | Tls::PeerSentOversizedRecord) => Self::NotTls,
            Some(Tls::PeerIncompatible(_) | Tls::NoApplicationProtocol) => Self::Incompatible,
            Some(Tls::NoCertificatesPresented | Tls::InvalidCertificate(_)) => Self::ClientCertificate,
            Some(Tls::AlertReceived(_)) => Self::Refused,
            Some(_) => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests;

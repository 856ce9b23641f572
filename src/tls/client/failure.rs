//! Why there is no session with a service, for people and for numbers.

use std::io;

use rustls::{AlertDescription, CertificateError, Error as Tls};

/// Why there is no session.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no TLS with it: {words}")]
pub struct Failure {
    /// What kind of failure it is.
    pub reason: Reason,
    words: Box<str>,
}

/// Kinds of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The service closed the connection.
    Closed,
    /// What came is not TLS.
    NotTls,
    /// Nothing that both can speak: versions, ciphers, protocols.
    Incompatible,
    /// Its certificate does not hold.
    Untrusted,
    /// It does not want ours, or says that something else is wrong.
    Refused,
    /// It did not come to its end in time, or nobody waited any more.
    Unfinished,
    /// Anything else.
    Other,
}

impl Reason {
    /// Every one.
    pub const ALL: [Self; 7] = [
        Self::Closed,
        Self::NotTls,
        Self::Incompatible,
        Self::Untrusted,
        Self::Refused,
        Self::Unfinished,
        Self::Other,
    ];

    /// In a word, for metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::NotTls => "not_tls",
            Self::Incompatible => "incompatible",
            Self::Untrusted => "untrusted",
            Self::Refused => "refused",
            Self::Unfinished => "unfinished",
            Self::Other => "other",
        }
    }
}

impl Failure {
    fn new(reason: Reason, words: impl Into<Box<str>>) -> Self {
        Self { reason, words: words.into() }
    }

    pub(super) fn of_name(host: &str) -> Self {
        Self::new(Reason::Other, format!("not a name that a certificate can have: {host}"))
    }

    pub(super) fn of_protocol() -> Self {
        Self::new(Reason::Incompatible, "it does not speak HTTP/2 over TLS (ALPN)")
    }

    pub(super) fn of(error: &io::Error) -> Self {
        let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<Tls>()) else {
            return Self::new(Reason::Closed, format!("the connection ended: {error}"));
        };
        match tls {
            Tls::InvalidMessage(_) | Tls::PeerSentOversizedRecord => {
                Self::new(Reason::NotTls, "what it says is not TLS")
            }
            Tls::AlertReceived(AlertDescription::NoApplicationProtocol) | Tls::NoApplicationProtocol => {
                Self::of_protocol()
            }
            Tls::AlertReceived(
                AlertDescription::HandshakeFailure
                | AlertDescription::ProtocolVersion
                | AlertDescription::InsufficientSecurity,
            )
            | Tls::PeerIncompatible(_) => Self::new(Reason::Incompatible, tls.to_string()),
            Tls::AlertReceived(alert) => {
                Self::new(Reason::Refused, format!("it has refused us with the alert {alert:?}"))
            }
            Tls::InvalidCertificate(error) => Self::new(Reason::Untrusted, untrusted(error)),
            other => Self::new(Reason::Other, other.to_string()),
        }
    }
}

fn untrusted(error: &CertificateError) -> String {
    match error {
        CertificateError::UnknownIssuer => {
            "its certificate is not trusted: no authority that we believe has issued it".to_owned()
        }
        // What the library knows only as something else: a certificate that is made for signing others.
        CertificateError::Other(other) if format!("{other:?}").contains("CaUsedAsEndEntity") => {
            "its certificate is not trusted: it is that of an authority, not of a service".to_owned()
        }
        other => format!("its certificate is not trusted: {other}"),
    }
}

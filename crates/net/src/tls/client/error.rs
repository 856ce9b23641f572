//! Failures of handshakes with a server, as a message and as a metric label.

use std::io;

use rustls::{AlertDescription, CertificateError, Error as Tls};

/// Why a handshake failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("TLS handshake failed: {words}")]
pub struct ClientHandshakeError {
    /// Kind of failure.
    pub kind: ClientHandshakeErrorKind,
    /// Whether the server has no certificate for the name, and says so.
    pub is_about_name: bool,
    /// Whether the server's certificate has expired, is not valid yet, or is revoked.
    pub is_about_validity: bool,
    words: Box<str>,
}

/// Kind of handshake failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientHandshakeErrorKind {
    /// The server closed the connection.
    Closed,
    /// The server's data is not TLS.
    NotTls,
    /// There is no common version, cipher suite or protocol.
    Incompatible,
    /// The server's certificate is invalid or not trusted.
    Untrusted,
    /// The server has no certificate for a name that a client of Weir has chosen.
    WrongName,
    /// The server sent an alert: it rejects the client's certificate, or found another error.
    AlertReceived,
    /// The handshake timed out, or was cancelled because its result was no longer needed.
    Unfinished,
    /// Any other failure.
    Other,
}

impl ClientHandshakeErrorKind {
    pub const ALL: [Self; 8] = [
        Self::Closed,
        Self::NotTls,
        Self::Incompatible,
        Self::Untrusted,
        Self::WrongName,
        Self::AlertReceived,
        Self::Unfinished,
        Self::Other,
    ];

    /// Returns the label value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::NotTls => "not_tls",
            Self::Incompatible => "incompatible",
            Self::Untrusted => "untrusted",
            Self::WrongName => "wrong_name",
            Self::AlertReceived => "refused",
            Self::Unfinished => "unfinished",
            Self::Other => "other",
        }
    }
}

impl ClientHandshakeError {
    fn new(reason: ClientHandshakeErrorKind, words: impl Into<Box<str>>) -> Self {
        Self { kind: reason, is_about_name: false, is_about_validity: false, words: words.into() }
    }

    pub(super) fn invalid_name(host: &str) -> Self {
        Self::new(ClientHandshakeErrorKind::Other, format!("invalid server name: {host}"))
    }

    pub(super) fn protocol_mismatch() -> Self {
        Self::new(ClientHandshakeErrorKind::Incompatible, "the server does not offer HTTP/2 over TLS (ALPN)")
    }

    pub(super) fn from_io(error: &io::Error) -> Self {
        let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<Tls>()) else {
            return Self::new(
                ClientHandshakeErrorKind::Closed,
                format!("the connection was closed: {error}"),
            );
        };
        match tls {
            Tls::InvalidMessage(_) | Tls::PeerSentOversizedRecord => {
                Self::new(ClientHandshakeErrorKind::NotTls, "the server does not speak TLS")
            }
            Tls::AlertReceived(AlertDescription::NoApplicationProtocol) | Tls::NoApplicationProtocol => {
                Self::protocol_mismatch()
            }
            Tls::AlertReceived(
                AlertDescription::HandshakeFailure
                | AlertDescription::ProtocolVersion
                | AlertDescription::InsufficientSecurity,
            )
            | Tls::PeerIncompatible(_) => Self::new(ClientHandshakeErrorKind::Incompatible, tls.to_string()),
            Tls::AlertReceived(alert) => Self {
                is_about_name: *alert == AlertDescription::UnrecognisedName,
                ..Self::new(
                    ClientHandshakeErrorKind::AlertReceived,
                    format!("the server sent the alert {alert:?}"),
                )
            },
            Tls::InvalidCertificate(error) => Self {
                is_about_name: matches!(
                    error,
                    CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }
                ),
                is_about_validity: matches!(
                    error,
                    CertificateError::Expired
                        | CertificateError::ExpiredContext { .. }
                        | CertificateError::NotValidYet
                        | CertificateError::NotValidYetContext { .. }
                        | CertificateError::Revoked
                ),
                ..Self::new(ClientHandshakeErrorKind::Untrusted, untrusted(error))
            },
            other => Self::new(ClientHandshakeErrorKind::Other, other.to_string()),
        }
    }
}

fn untrusted(error: &CertificateError) -> String {
    match error {
        CertificateError::UnknownIssuer => {
            "the server's certificate is not trusted: unknown issuer (set `ca` to a file with the issuer's certificate, or \
             with this one)"
                .to_owned()
        }
        // rustls has no variant of its own for a CA certificate that is used as an end-entity certificate.
        CertificateError::Other(other) if format!("{other:?}").contains("CaUsedAsEndEntity") => {
            "the server's certificate is not trusted: it is a CA certificate (set `ca` to a file with exactly this \
             certificate, or issue one with `basicConstraints=CA:FALSE`)"
                .to_owned()
        }
        CertificateError::NotValidForNameContext { expected, presented } if presented.is_empty() => format!(
            "the server's certificate is not trusted: not valid for name {}, it has no subject alternative name (issue \
             one with `subjectAltName`, or set `ca` to a file with exactly this certificate)",
            expected.to_str()
        ),
        CertificateError::NotValidForNameContext { expected, presented } => format!(
            "the server's certificate is not trusted: not valid for name {}, only for {} (set `server_name` to a name of \
             the certificate)",
            expected.to_str(),
            presented.join(", ")
        ),
        other => format!("the server's certificate is not trusted: {other}"),
    }
}

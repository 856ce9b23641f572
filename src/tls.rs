//! TLS by rustls, with aws-lc-rs as its cryptography: certificates and keys out of PEM, what certificates say, and
//! either side of a handshake.
//!
//! Knows nothing of configurations, of HTTP, or of who trusts whom for what. The provider is always named, never
//! taken from the process: two of them in one program would otherwise be a panic.

pub mod certificate;
pub mod client;
pub mod handshake_limiter;
pub mod identity;
pub mod pair;
pub mod pem;
pub mod server;

use std::sync::Arc;

use rustls::HandshakeKind;
use rustls::crypto::{CryptoProvider, aws_lc_rs};

/// The cryptography of every configuration, server's and client's.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// What is spoken inside (RFC 7301 section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// `http/1.1`.
    Http1,
    /// `h2`.
    Http2,
}

impl Protocol {
    fn token(self) -> Vec<u8> {
        match self {
            Self::Http1 => b"http/1.1".to_vec(),
            Self::Http2 => b"h2".to_vec(),
        }
    }

    /// What both sides agreed on, if they did.
    fn spoken(token: Option<&[u8]>) -> Option<Self> {
        token.map(|token| if token == b"h2" { Self::Http2 } else { Self::Http1 })
    }
}

/// How a session began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionStart {
    /// By a full handshake.
    Full,
    /// As the continuation of an earlier session.
    Resumed,
}

impl SessionStart {
    fn of(handshake: Option<HandshakeKind>) -> Self {
        if handshake == Some(HandshakeKind::Resumed) { Self::Resumed } else { Self::Full }
    }
}

//! TLS with rustls and aws-lc-rs: certificates and keys in PEM, contents of certificates, and both sides of a
//! handshake.
//!
//! The module is independent of configuration and HTTP. The cryptography provider is always passed explicitly: with two
//! providers in one program, rustls panics if none is given.

pub mod certificate;
pub mod client;
pub mod handshake_limiter;
pub mod identity;
pub mod key_pair;
pub mod pem;
pub mod server;

use std::sync::Arc;

use rustls::HandshakeKind;
use rustls::crypto::{CryptoProvider, aws_lc_rs};

/// Returns the cryptography provider of all servers and clients.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// Application protocol of a TLS connection (ALPN, RFC 7301 section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlpnProtocol {
    /// `http/1.1`.
    Http1,
    /// `h2`.
    Http2,
}

impl AlpnProtocol {
    fn token(self) -> Vec<u8> {
        match self {
            Self::Http1 => b"http/1.1".to_vec(),
            Self::Http2 => b"h2".to_vec(),
        }
    }

    /// Returns the protocol that was negotiated, if any.
    fn from_alpn(token: Option<&[u8]>) -> Option<Self> {
        token.map(|token| if token == b"h2" { Self::Http2 } else { Self::Http1 })
    }
}

/// How a session began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionStart {
    /// With a full handshake.
    Full,
    /// By resuming an earlier session.
    Resumed,
}

impl SessionStart {
    fn from_handshake(handshake: Option<HandshakeKind>) -> Self {
        if handshake == Some(HandshakeKind::Resumed) { Self::Resumed } else { Self::Full }
    }
}

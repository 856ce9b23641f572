//! TLS by rustls, with aws-lc-rs as its cryptography: certificates and keys out of PEM, what certificates say, and
//! the server's side of a handshake.
//!
//! Knows nothing of configurations, of HTTP, or of who trusts whom for what. The provider is always named, never
//! taken from the process: two of them in one program would otherwise be a panic.

pub mod certificate;
pub mod identity;
pub mod pem;
pub mod server;

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};

/// The cryptography of every configuration, server's and client's.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

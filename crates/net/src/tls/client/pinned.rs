//! Verifier that also accepts a certificate which is itself in the file of authorities.
//!
//! `openssl req -x509` makes a certificate that is its own authority, often without alternative names. The verification of
//! chains rejects it as an end-entity certificate, although the operator has named exactly this one.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};

use crate::tls::pem::Authorities;

/// Accepts what the authorities have issued, and the certificates of the authorities themselves.
#[derive(Debug)]
pub(super) struct PinnedServerVerification {
    chains: Arc<WebPkiServerVerifier>,
    authorities: Arc<Authorities>,
}

impl PinnedServerVerification {
    pub(super) fn new(chains: Arc<WebPkiServerVerifier>, authorities: Arc<Authorities>) -> Self {
        Self { chains, authorities }
    }

    /// Verifies a certificate that may be one of the authorities: its period, and its names if it has any. Without names,
    /// the certificate itself identifies the server. `None` for any other certificate.
    fn verify_pinned(
        &self,
        certificate: &CertificateDer<'_>,
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Option<Result<(), Error>> {
        let info = self.authorities.info_of(certificate)?;
        if now.as_secs() < info.valid_from {
            return Some(Err(CertificateError::NotValidYet.into()));
        }
        if now.as_secs() > info.expires {
            return Some(Err(CertificateError::Expired.into()));
        }
        let has_names = !info.names.is_empty();
        Some(match ParsedCertificate::try_from(certificate) {
            Ok(parsed) if has_names => verify_server_name(&parsed, name),
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        })
    }
}

impl ServerCertVerifier for PinnedServerVerification {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.chains.verify_server_cert(certificate, intermediates, name, ocsp, now);
        let Err(error) = verified else { return verified };
        match self.verify_pinned(certificate, name, now) {
            Some(pinned) => pinned.map(|()| ServerCertVerified::assertion()),
            None => Err(error),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chains.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chains.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chains.supported_verify_schemes()
    }
}

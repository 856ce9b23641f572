//! Certificate authorities and certificates, generated when a test runs so that none has expired.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    IsCa, KeyPair, KeyUsagePurpose, SanType,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// A certificate authority.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// Creates an authority. `name` must be unique, since clients distinguish authorities by name.
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Writes its certificate to a file.
    pub(crate) fn write(&self, path: &Path) -> PathBuf {
        fs::write(path, self.0.pem()).unwrap();
        path.to_owned()
    }

    /// Issues a certificate for `host`, and atomically writes it and its key to `directory`.
    pub(crate) fn issue(&self, host: &str, directory: &Path, name: &str) -> (PathBuf, PathBuf) {
        let (certificate, key) = self.sign(host);
        let paths = (directory.join(format!("{name}.crt")), directory.join(format!("{name}.key")));
        for (path, text) in [(&paths.0, certificate.pem()), (&paths.1, key.serialize_pem())] {
            let next = path.with_extension("next");
            fs::write(&next, text).unwrap();
            fs::rename(&next, path).unwrap();
        }
        paths
    }

    /// Returns a client configuration that trusts only this authority, and presents a certificate for `host` if there
    /// is one.
    pub(crate) fn client(&self, host: Option<&str>) -> Arc<ClientConfig> {
        let roots = self.roots();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.unwrap().with_root_certificates(roots);
        Arc::new(match host {
            None => builder.with_no_client_auth(),
            Some(host) => {
                let (certificate, key) = self.sign(host);
                let chain: Vec<CertificateDer<'static>> = vec![certificate.der().clone()];
                let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        })
    }

    /// Returns a server configuration with a certificate for `host` and these ALPN protocols. If
    /// `require_client_cert`, clients must present a certificate of this authority.
    pub(crate) fn server(
        &self,
        host: &str,
        protocols: &[&str],
        require_client_cert: bool,
    ) -> Arc<ServerConfig> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let builder = match require_client_cert {
            false => builder.with_no_client_auth(),
            true => {
                let roots = Arc::new(self.roots());
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build().unwrap();
                builder.with_client_cert_verifier(verifier)
            }
        };
        finish_server(builder, self.sign(host), protocols)
    }

    /// Returns a server configuration with a certificate for `host` that has expired.
    pub(crate) fn expired_server(&self, host: &str, protocols: &[&str]) -> Arc<ServerConfig> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let (mut params, key) = params(host);
        params.not_after = rcgen::date_time_ymd(2001, 1, 1);
        let certificate = params.signed_by(&key, &self.0).unwrap();
        finish_server(builder.unwrap().with_no_client_auth(), (certificate, key), protocols)
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        roots
    }

    fn sign(&self, host: &str) -> (rcgen::Certificate, KeyPair) {
        let (params, key) = params(host);
        (params.signed_by(&key, &self.0).unwrap(), key)
    }
}

/// Returns what a certificate for `host` contains, with the subject `CN=host,O=Weir` and the identity
/// `spiffe://test/host`, and its key.
fn params(host: &str) -> (CertificateParams, KeyPair) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new([host.to_owned()]).unwrap();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "Weir");
    params.distinguished_name.push(DnType::CommonName, host);
    let identity = format!("spiffe://test/{}", host.replace('*', "any"));
    params.subject_alt_names.push(SanType::URI(identity.as_str().try_into().unwrap()));
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    (params, key)
}

fn finish_server(
    builder: rustls::ConfigBuilder<ServerConfig, rustls::server::WantsServerCert>,
    (certificate, key): (rcgen::Certificate, KeyPair),
    protocols: &[&str],
) -> Arc<ServerConfig> {
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let mut config = builder.with_single_cert(vec![certificate.der().clone()], key).unwrap();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    config.ticketer = rustls::crypto::aws_lc_rs::Ticketer::new().unwrap();
    Arc::new(config)
}

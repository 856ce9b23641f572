use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair, SanType,
};
use rustls::client::Resumption;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio_rustls::TlsConnector;

use super::*;
use crate::tls::key_pair::KeyMismatch;
use crate::tls::pem::{CertificateChain, PrivateKey};

/// A certificate authority and the certificates that it issues.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn issue(
        &self,
        name: &str,
        purpose: ExtendedKeyUsagePurpose,
    ) -> (CertificateDer<'static>, String, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.subject_alt_names.push(SanType::URI(format!("spiffe://test/{name}").try_into().unwrap()));
        params.extended_key_usages.push(purpose);
        let certificate = params.signed_by(&key, &self.0).unwrap();
        (certificate.der().clone(), certificate.pem(), key)
    }

    fn key_pair(&self, name: &str) -> CertificateKeyPair {
        let (_, pem, key) = self.issue(name, ExtendedKeyUsagePurpose::ServerAuth);
        let chain = CertificateChain::from_pem(pem.as_bytes()).unwrap();
        CertificateKeyPair::new(
            Arc::new(chain),
            &PrivateKey::from_pem(key.serialize_pem().as_bytes()).unwrap(),
            name.into(),
        )
        .unwrap()
    }

    fn client_verification(&self, required: bool) -> ClientVerification {
        let authorities = Authorities::from_pem(self.0.pem().as_bytes()).unwrap();
        ClientVerification::Enabled { authorities: Arc::new(authorities), file: "ca.pem".into(), required }
    }

    /// Returns a client that trusts this authority, and presents a certificate of `shown`.
    fn client(&self, shown: Option<&Self>) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let builder =
            ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().unwrap();
        let builder = builder.with_root_certificates(roots);
        match shown {
            Some(issuer) => {
                let (certificate, _, key) = issuer.issue("client", ExtendedKeyUsagePurpose::ClientAuth);
                let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
                builder.with_client_auth_cert(vec![certificate], key).unwrap()
            }
            None => builder.with_no_client_auth(),
        }
    }
}

/// Performs a handshake; also returns whether the client received a response.
async fn handshake(
    server: &TlsServer,
    client: &Arc<ClientConfig>,
) -> (Result<TlsSession, ServerHandshakeError>, bool) {
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let connector = TlsConnector::from(Arc::clone(client));
    let speaking = async move {
        let name = ServerName::try_from("a.example").unwrap();
        let mut stream = connector.connect(name, theirs).await.ok()?;
        let mut greeting = [0; 5];
        stream.read_exact(&mut greeting).await.ok()
    };
    let serving = async move {
        let (mut stream, session): (TlsStream<DuplexStream>, _) = server.accept(ours).await?;
        stream.write_all(b"hello").await.map_err(|_| ServerHandshakeError::Other)?;
        stream.flush().await.map_err(|_| ServerHandshakeError::Other)?;
        Ok(session)
    };
    let (served, greeting) = tokio::join!(serving, speaking);
    (served, greeting.is_some())
}

fn server(authority: &Authority, clients: ClientVerification) -> TlsServer {
    TlsServer::new(
        TlsServerSettings {
            key_pairs: vec![authority.key_pair("a.example")],
            client_verification: clients,
            max_handshakes: 1,
        },
        None,
    )
    .unwrap()
}

#[tokio::test]
async fn session_ticket_survives_a_certificate_change() {
    let authority = Authority::new();
    let client = Arc::new(authority.client(None));
    let first = server(&authority, ClientVerification::Disabled);
    let (session, is_answered) = handshake(&first, &client).await;
    assert!(is_answered && session.unwrap().start == SessionStart::Full);
    assert!(handshake(&first, &client).await.0.unwrap().start == SessionStart::Resumed);
    let settings = TlsServerSettings {
        key_pairs: vec![authority.key_pair("a.example")],
        client_verification: ClientVerification::Disabled,
        max_handshakes: 1,
    };
    let second = TlsServer::new(settings.clone(), Some(&first)).unwrap();
    assert!(handshake(&second, &client).await.0.unwrap().start == SessionStart::Resumed);
    let stranger = TlsServer::new(settings, None).unwrap();
    let (session, is_answered) = handshake(&stranger, &client).await;
    assert!(is_answered && session.unwrap().start == SessionStart::Full);
}

#[tokio::test]
async fn client_identity_survives_session_resumption() {
    let authority = Authority::new();
    let client = Arc::new(authority.client(Some(&authority)));
    let server = server(&authority, authority.client_verification(true));
    for start in [SessionStart::Full, SessionStart::Resumed] {
        let session = handshake(&server, &client).await.0.unwrap();
        assert_eq!(session.start, start);
        assert_eq!(session.identity.unwrap().spiffe(), Some("spiffe://test/client"));
    }
}

#[tokio::test]
async fn only_client_certificates_of_the_authority_are_accepted() {
    let (authority, other) = (Authority::new(), Authority::new());
    let (required, optional) = (
        server(&authority, authority.client_verification(true)),
        server(&authority, authority.client_verification(false)),
    );
    let anonymous = Arc::new(authority.client(None));
    let stranger = Arc::new(authority.client(Some(&other)));
    for (server, client) in [(&required, &anonymous), (&required, &stranger), (&optional, &stranger)] {
        let (session, is_answered) = handshake(server, client).await;
        assert_eq!((session, is_answered), (Err(ServerHandshakeError::ClientCertificate), false));
    }
    let (session, is_answered) = handshake(&optional, &anonymous).await;
    assert!(is_answered && session.unwrap().identity.is_none());
}

#[tokio::test]
async fn session_ticket_is_invalid_after_the_client_authority_changes() {
    let (authority, other) = (Authority::new(), Authority::new());
    let client = Arc::new(authority.client(Some(&authority)));
    let before = server(&authority, authority.client_verification(true));
    assert!(handshake(&before, &client).await.1);
    let settings = TlsServerSettings {
        client_verification: other.client_verification(true),
        ..before.settings().clone()
    };
    let after = TlsServer::new(settings, Some(&before)).unwrap();
    assert_eq!(handshake(&after, &client).await, (Err(ServerHandshakeError::ClientCertificate), false));
}

#[tokio::test]
async fn server_handshake_errors_are_classified() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server = server(&authority, ClientVerification::Disabled);
    let distrusting = Arc::new(other.client(None));
    assert_eq!(handshake(&server, &distrusting).await, (Err(ServerHandshakeError::AlertReceived), false));
    let mut alien = authority.client(None);
    alien.alpn_protocols = vec![b"smtp".to_vec()];
    alien.resumption = Resumption::disabled();
    assert_eq!(handshake(&server, &Arc::new(alien)).await, (Err(ServerHandshakeError::Incompatible), false));
    for (said, failure) in
        [(&b"GET / HTTP/1.1\r\n\r\n"[..], ServerHandshakeError::NotTls), (b"", ServerHandshakeError::Closed)]
    {
        let (ours, mut theirs) = tokio::io::duplex(1024);
        theirs.write_all(said).await.unwrap();
        theirs.shutdown().await.unwrap();
        assert_eq!(server.accept(ours).await.map(|(_, session)| session).unwrap_err(), failure);
    }
}

#[test]
fn private_key_must_match_its_certificate() {
    let authority = Authority::new();
    let (_, pem, _) = authority.issue("a.example", ExtendedKeyUsagePurpose::ServerAuth);
    let chain = Arc::new(CertificateChain::from_pem(pem.as_bytes()).unwrap());
    let key = PrivateKey::from_pem(KeyPair::generate().unwrap().serialize_pem().as_bytes()).unwrap();
    assert_eq!(CertificateKeyPair::new(chain, &key, "a".into()).unwrap_err(), KeyMismatch);
}

use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio_rustls::TlsAcceptor;

use super::*;

type Authority = CertifiedIssuer<'static, KeyPair>;

/// Creates an authority with a distinct name.
fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn server(authority: &Authority, host: &str, change: impl FnOnce(&mut CertificateParams)) -> TlsAcceptor {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new([host.to_owned()]).unwrap();
    change(&mut params);
    let certificate = params.signed_by(&key, authority).unwrap();
    acceptor(certificate.der().clone(), &key)
}

fn acceptor(certificate: rustls::pki_types::CertificateDer<'static>, key: &KeyPair) -> TlsAcceptor {
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let builder = builder.unwrap().with_no_client_auth();
    let mut config = builder.with_single_cert(vec![certificate], key).unwrap();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

fn client(authority: &Authority, name: Option<&str>) -> TlsClient {
    let authorities = Arc::new(Authorities::from_pem(authority.pem().as_bytes()).unwrap());
    let name = name.map(|name| ServerName::try_from(name.to_owned()).unwrap());
    TlsClient::new(TlsClientSettings {
        verification: ServerVerification::Configured { authorities, file: "a".into() },
        key_pair: None,
        name,
    })
    .unwrap()
}

/// Performs a handshake, and reads a byte from the server, so that session tickets are received.
async fn handshake(
    client: &TlsClient,
    server: &TlsAcceptor,
    host: &str,
    protocol: AlpnProtocol,
) -> Result<SessionStart, ClientHandshakeError> {
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let serving = async {
        let mut stream = server.accept(theirs).await.ok()?;
        stream.write_all(b"x").await.ok()?;
        stream.flush().await.ok()
    };
    let connecting = async {
        let (mut stream, shaken): (TlsStream<DuplexStream>, _) = client.connect(ours, host, protocol).await?;
        let mut byte = [0];
        let _ = stream.read_exact(&mut byte).await;
        Ok(shaken)
    };
    tokio::join!(serving, connecting).1
}

fn kind_and_message(
    shaken: Result<SessionStart, ClientHandshakeError>,
) -> (ClientHandshakeErrorKind, String) {
    let failure = shaken.unwrap_err();
    (failure.kind, failure.to_string())
}

#[tokio::test]
async fn server_certificate_must_have_the_expected_name_or_address() {
    let authority = authority("one");
    let (named, addressed) =
        (server(&authority, "a.example", |_| {}), server(&authority, "192.0.2.1", |_| {}));
    for (name, server, host, is_good) in [
        (None, &named, "a.example", true),
        (None, &named, "b.example", false),
        (None, &named, "192.0.2.1", false),
        (None, &addressed, "192.0.2.1", true),
        (None, &addressed, "192.0.2.2", false),
        (Some("a.example"), &named, "192.0.2.1", true),
        (Some("192.0.2.1"), &addressed, "a.example", true),
        (Some("b.example"), &named, "a.example", false),
    ] {
        let shaken = handshake(&client(&authority, name), server, host, AlpnProtocol::Http1).await;
        assert_eq!(shaken.is_ok(), is_good, "{name:?} {host}: {shaken:?}");
        assert!(is_good || kind_and_message(shaken).0 == ClientHandshakeErrorKind::Untrusted);
    }
}

#[tokio::test]
async fn session_is_resumed_by_the_same_client_only() {
    let authority = authority("one");
    let server = server(&authority, "a.example", |_| {});
    let first = client(&authority, None);
    for expected in [SessionStart::Full, SessionStart::Resumed, SessionStart::Resumed] {
        assert_eq!(handshake(&first, &server, "a.example", AlpnProtocol::Http1).await, Ok(expected));
    }
    let second = client(&authority, None);
    assert_eq!(handshake(&second, &server, "a.example", AlpnProtocol::Http1).await, Ok(SessionStart::Full));
}

#[tokio::test]
async fn client_handshake_errors_name_their_cause() {
    let (authority, other) = (authority("one"), authority("other"));
    let expired = |params: &mut CertificateParams| {
        params.not_before = rcgen::date_time_ymd(2001, 1, 1);
        params.not_after = rcgen::date_time_ymd(2002, 1, 1);
    };
    let of_authority =
        |params: &mut CertificateParams| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let client = client(&authority, None);
    let failing = async |server: &TlsAcceptor, protocol| {
        kind_and_message(handshake(&client, server, "a.example", protocol).await)
    };
    for (server, part) in [
        (server(&other, "a.example", |_| {}), "unknown issuer"),
        (server(&authority, "a.example", expired), "expired"),
        (server(&authority, "a.example", of_authority), "it is a CA certificate"),
        (server(&authority, "b.example", |_| {}), "not valid for name"),
    ] {
        let (reason, words) = failing(&server, AlpnProtocol::Http1).await;
        assert!(reason == ClientHandshakeErrorKind::Untrusted && words.contains(part), "{part}: {words}");
    }
    let good = server(&authority, "a.example", |_| {});
    let (reason, words) = failing(&good, AlpnProtocol::Http2).await;
    assert!(reason == ClientHandshakeErrorKind::Incompatible && words.contains("HTTP/2"), "{words}");
}

#[tokio::test]
async fn disabled_verification_accepts_any_certificate() {
    let authority = authority("one");
    let server = server(&authority, "b.example", |_| {});
    let client = TlsClient::new(TlsClientSettings {
        verification: ServerVerification::Disabled,
        key_pair: None,
        name: None,
    })
    .unwrap();
    assert_eq!(handshake(&client, &server, "a.example", AlpnProtocol::Http1).await, Ok(SessionStart::Full));
}

#[tokio::test]
async fn server_without_tls_is_distinguished_from_a_closed_connection() {
    let client = client(&authority("one"), None);
    for (said, reason) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], ClientHandshakeErrorKind::NotTls),
        (b"", ClientHandshakeErrorKind::Closed),
    ] {
        let (ours, mut theirs) = tokio::io::duplex(64 * 1024);
        theirs.write_all(said).await.unwrap();
        theirs.shutdown().await.unwrap();
        let connecting = client.connect(ours, "a.example", AlpnProtocol::Http1);
        let shaken = tokio::time::timeout(Duration::from_secs(30), connecting).await.unwrap();
        assert_eq!(kind_and_message(shaken.map(|(_, shaken)| shaken)).0, reason);
    }
}

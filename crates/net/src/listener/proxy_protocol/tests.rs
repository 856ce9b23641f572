use proptest::prelude::*;

use super::*;

fn complete_header(version: Version, source: Option<&str>, length: usize) -> ParseOutcome {
    let source = source.map(|source| source.parse().unwrap());
    ParseOutcome::Complete { header: ProxyHeader { version, source }, length }
}

/// Returns a version 2 header with these bytes after the signature and a correct length.
fn v2_header(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
    [V2_SIGNATURE, &[command, family], &length, rest].concat()
}

fn v2_addresses(source: SocketAddr) -> Vec<u8> {
    let port = source.port().to_be_bytes();
    match source.ip() {
        IpAddr::V4(ip) => [&ip.octets()[..], &[127, 0, 0, 1], &port, &[0, 80]].concat(),
        IpAddr::V6(ip) => [&ip.octets()[..], &[0; 16], &port, &[0, 80]].concat(),
    }
}

#[test]
fn proxy_protocol_v1_header_is_parsed() {
    let said = b"PROXY TCP4 192.0.2.1 198.51.100.2 56324 443\r\nGET / HTTP/1.1\r\n";
    assert_eq!(parse(said), complete_header(Version::V1, Some("192.0.2.1:56324"), 45));
    let said = b"PROXY TCP6 2001:db8::1 2001:db8::2 1 65535\r\n";
    assert_eq!(parse(said), complete_header(Version::V1, Some("[2001:db8::1]:1"), said.len()));
    assert_eq!(parse(b"PROXY UNKNOWN\r\n"), complete_header(Version::V1, None, 15));
    assert_eq!(parse(b"PROXY UNKNOWN ff 1 whatever\r\n"), complete_header(Version::V1, None, 29));
}

#[test]
fn malformed_proxy_protocol_v1_header_is_rejected() {
    let long = [b"PROXY UNKNOWN ".as_slice(), &[b'a'; 92], b"\r\n"].concat();
    let lines: [&[u8]; 11] = [
        b"PROXY TCP4 192.0.2.1 198.51.100.2 56324\r\n",
        b"PROXY TCP4 192.0.2.1 198.51.100.2 56324 443 1\r\n",
        b"PROXY TCP4 2001:db8::1 2001:db8::2 1 2\r\n",
        b"PROXY TCP6 192.0.2.1 198.51.100.2 1 2\r\n",
        b"PROXY TCP4 192.0.2.1 198.51.100.2 65536 2\r\n",
        b"PROXY TCP4 192.0.2.1 198.51.100.2 +1 2\r\n",
        b"PROXY TCP4  192.0.2.1 198.51.100.2 1 2\r\n",
        b"PROXY UDP4 192.0.2.1 198.51.100.2 1 2\r\n",
        b"PROXY \r\n",
        b"PROXY TCP4 192.0.2.1 198.51.100.2 1 \xff\r\n",
        &long,
    ];
    for line in lines {
        assert_eq!(parse(line), ParseOutcome::Malformed, "{}", line.escape_ascii());
    }
    let longest = [b"PROXY UNKNOWN ".as_slice(), &[b'a'; 91], b"\r\n"].concat();
    assert_eq!((longest.len(), parse(&longest)), (107, complete_header(Version::V1, None, 107)));
    assert_eq!(parse(&[b"PROXY UNKNOWN ".as_slice(), &[b'a'; 92]].concat()), ParseOutcome::Partial);
}

#[test]
fn proxy_protocol_v2_header_is_parsed_and_tlvs_are_skipped() {
    let source: SocketAddr = "192.0.2.1:56324".parse().unwrap();
    let said = v2_header(0x21, 0x11, &v2_addresses(source));
    assert_eq!(parse(&said), complete_header(Version::V2, Some("192.0.2.1:56324"), 28));
    let more = [v2_addresses(source), vec![4, 0, 3, 1, 2, 3]].concat();
    assert_eq!(
        parse(&v2_header(0x21, 0x11, &more)),
        complete_header(Version::V2, Some("192.0.2.1:56324"), 34)
    );
    for (command, family) in [(0x20, 0x11), (0x20, 0x00), (0x21, 0x00), (0x21, 0x31), (0x21, 0x12)] {
        let length = V2_FIXED_LENGTH + more.len();
        assert_eq!(
            parse(&v2_header(command, family, &more)),
            complete_header(Version::V2, None, length),
            "{family:x}"
        );
    }
}

#[test]
fn malformed_proxy_protocol_v2_header_is_rejected() {
    let full = v2_addresses("192.0.2.1:1".parse().unwrap());
    for (command, family, rest) in [
        (0x11, 0x11, &full[..]),
        (0x22, 0x11, &full),
        (0x21, 0x41, &full),
        (0x21, 0x13, &full),
        (0x21, 0x11, &full[..11]),
        (0x21, 0x21, &full),
        (0x21, 0x11, &[0; MAX_HEADER_LENGTH]),
    ] {
        assert_eq!(
            parse(&v2_header(command, family, rest)),
            ParseOutcome::Malformed,
            "{command:x} {family:x}"
        );
    }
}

#[test]
fn absent_proxy_protocol_header_is_detected_early() {
    for bytes in
        [&b"GET / HTTP/1.1\r\n"[..], b"PRI * HTTP/2.0", b"POST /", b"\r\nGET", b"\x16\x03\x01", b"proxy "]
    {
        assert_eq!(parse(bytes), ParseOutcome::Absent, "{}", bytes.escape_ascii());
    }
    for bytes in [&b""[..], b"P", b"PRO", b"\r\n\r\n", V2_SIGNATURE] {
        assert_eq!(parse(bytes), ParseOutcome::Partial, "{}", bytes.escape_ascii());
    }
}

fn source() -> impl Strategy<Value = SocketAddr> {
    any::<(IpAddr, u16)>().prop_map(|(ip, port)| SocketAddr::new(ip, port))
}

proptest! {
    #[test]
    fn proxy_protocol_header_length_is_consistent_for_any_bytes(
        which in 0..3_usize,
        rest in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let bytes = [[b"", V1_PREFIX, V2_SIGNATURE][which], &rest].concat();
        if let ParseOutcome::Complete { length, .. } = parse(&bytes) {
            prop_assert!(length <= bytes.len());
            prop_assert_eq!(parse(&bytes[..length]), parse(&bytes));
        }
    }

    #[test]
    fn proxy_protocol_headers_are_parsed_and_their_prefixes_are_partial(source in source(), tail in any::<[u8; 5]>()) {
        let word = if source.is_ipv4() { "TCP4" } else { "TCP6" };
        let line = format!("PROXY {word} {} {} {} 80\r\n", source.ip(), source.ip(), source.port());
        let family = if source.is_ipv4() { 0x11 } else { 0x21 };
        let header = v2_header(0x21, family, &v2_addresses(source));
        for (version, bytes) in [(Version::V1, line.into_bytes()), (Version::V2, header)] {
            let expected =
                ParseOutcome::Complete { header: ProxyHeader { version, source: Some(source) }, length: bytes.len() };
            prop_assert_eq!(parse(&[&bytes[..], &tail].concat()), expected);
            for end in 0..bytes.len() {
                prop_assert_eq!(parse(&bytes[..end]), ParseOutcome::Partial);
            }
        }
    }
}

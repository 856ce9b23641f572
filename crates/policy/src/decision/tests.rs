use envoy_types::pb::envoy::config::core::v3 as core;
use envoy_types::pb::envoy::service::auth::v3 as auth;
use http::header::CONTENT_LENGTH;
use prost::Message as _;

use super::*;
use crate::identify::client_headers::AddressHeader;

fn trusting(names: &[&'static str]) -> IdentifySettings {
    let network: ipnet::IpNet = "10.0.0.0/8".parse().unwrap();
    let named = names.iter().map(|name| AddressHeader::new(HeaderName::from_static(name)));
    IdentifySettings {
        trusted_proxies: [network].into_iter().collect(),
        address_headers: named.collect(),
        ..IdentifySettings::default()
    }
}

fn head(fields: &[(&'static str, &str)]) -> request::Parts {
    let mut head = http::Request::get("/ask").body(()).unwrap().into_parts().0;
    head.headers.insert(HOST, HeaderValue::from_static("weir.test"));
    for (name, value) in fields {
        head.headers.append(*name, value.parse().unwrap());
    }
    head
}

/// Returns the request that these headers describe, as `METHOD HOST TARGET`.
fn restored(protocol: DecisionProtocol, fields: &[(&'static str, &str)]) -> Result<String, String> {
    let mut head = head(fields);
    restore(protocol, &mut head, &trusting(&["x-forwarded-for"])).map_err(|problem| problem.to_string())?;
    Ok(format!("{} {} {}", head.method, head.headers[HOST].to_str().unwrap(), head.uri))
}

const CLIENT: (&str, &str) = ("x-forwarded-for", "192.0.2.1");

#[test]
fn headers_of_traefik_name_the_request() {
    let fields = [
        CLIENT,
        ("x-forwarded-method", "POST"),
        ("x-forwarded-host", "shop.test"),
        ("x-forwarded-uri", "/a/b?c=%20"),
    ];
    let read = |fields: &[_]| restored(DecisionProtocol::ForwardAuth, fields);
    assert_eq!(read(&fields).unwrap(), "POST shop.test /a/b?c=%20");
    for (index, name) in ["x-forwarded-for", "x-forwarded-method", "x-forwarded-host", "x-forwarded-uri"]
        .into_iter()
        .enumerate()
    {
        let mut fewer = fields.to_vec();
        fewer.remove(index);
        assert_eq!(
            read(&fewer).unwrap_err(),
            format!("missing header {name}: the proxy that asks must set it")
        );
    }
    let twice = [&fields[..], &[("x-forwarded-uri", "/other")]].concat();
    assert!(read(&twice).unwrap_err().starts_with("more than one header x-forwarded-uri"));
}

#[test]
fn headers_of_nginx_name_the_request() {
    let read = |uri: &str| {
        let fields = [CLIENT, ("x-original-method", "PUT"), ("x-original-uri", uri)];
        restored(DecisionProtocol::AuthRequest, &fields)
    };
    assert_eq!(read("/a?b").unwrap(), "PUT weir.test /a?b");
    assert_eq!(read("https://shop.test:8443/a?b").unwrap(), "PUT shop.test:8443 /a?b");
    assert_eq!(read("https://shop.test?b").unwrap(), "PUT shop.test /?b");
    assert_eq!(read("*").unwrap(), "PUT weir.test *");
    for invalid in ["", "a/b", "shop.test:80", "/a b", "http:///a", "?a"] {
        assert_eq!(read(invalid).unwrap_err(), "invalid value of header x-original-uri", "{invalid}");
    }
    let method = [CLIENT, ("x-original-method", "P T"), ("x-original-uri", "/")];
    let invalid = restored(DecisionProtocol::AuthRequest, &method).unwrap_err();
    assert_eq!(invalid, "invalid value of header x-original-method");
}

#[test]
fn http_service_of_envoy_is_not_served_over_http2() {
    let read = |version| {
        let mut head = head(&[CLIENT]);
        head.version = version;
        restore(DecisionProtocol::ExtAuthz, &mut head, &trusting(&["x-forwarded-for"]))
    };
    assert_eq!(read(Version::HTTP_11), Ok(()));
    assert_eq!(read(Version::HTTP_2), Err(InvalidInquiry::NotCheck));
}

/// Returns a call as the content of its stream, with the messages that Envoy's own types define.
fn call(source: &str, http: auth::attribute_context::HttpRequest) -> Vec<u8> {
    let socket = core::SocketAddress { address: source.to_owned(), ..core::SocketAddress::default() };
    let address = core::Address { address: Some(core::address::Address::SocketAddress(socket)) };
    let peer = auth::attribute_context::Peer {
        address: Some(address),
        certificate: "ignored".into(),
        ..auth::attribute_context::Peer::default()
    };
    let request =
        auth::attribute_context::Request { http: Some(http), ..auth::attribute_context::Request::default() };
    let attributes = auth::AttributeContext {
        source: Some(peer),
        request: Some(request),
        ..auth::AttributeContext::default()
    };
    framed(&auth::CheckRequest { attributes: Some(attributes) }.encode_to_vec())
}

fn framed(message: &[u8]) -> Vec<u8> {
    [&[0][..], &u32::try_from(message.len()).unwrap().to_be_bytes(), message].concat()
}

fn http_request(headers: &[(&str, &str)]) -> auth::attribute_context::HttpRequest {
    auth::attribute_context::HttpRequest {
        method: "POST".into(),
        path: "/a?b".into(),
        host: "shop.test".into(),
        scheme: "https".into(),
        protocol: "HTTP/1.1".into(),
        headers: headers.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
        ..auth::attribute_context::HttpRequest::default()
    }
}

#[test]
fn call_of_envoy_is_read() {
    let headers = [(":path", "/other"), ("x-key", "k"), ("content-length", "7"), ("host", "other.test")];
    let settings = trusting(&["x-forwarded-for"]);
    let head = check::read_request(&call("192.0.2.1", http_request(&headers)), &settings).unwrap();
    assert_eq!((head.method.as_str(), head.uri.to_string().as_str()), ("POST", "/a?b"));
    assert_eq!(
        (&head.headers["host"], &head.headers["x-key"]),
        (&"shop.test".parse().unwrap(), &"k".parse().unwrap())
    );
    assert!(!head.headers.contains_key(CONTENT_LENGTH));
}

#[test]
fn raw_headers_of_envoy_are_read() {
    let raw = |key: &str, value: &[u8]| core::HeaderValue {
        key: key.into(),
        raw_value: value.to_vec(),
        ..core::HeaderValue::default()
    };
    let mut http = http_request(&[]);
    let headers = vec![raw("x-a", b"1"), raw("x-a", b"\xff"), raw(":method", b"GET")];
    http.header_map = Some(core::HeaderMap { headers });
    let head = check::read_request(&call("192.0.2.1", http), &trusting(&["x-forwarded-for"])).unwrap();
    let values: Vec<_> = head.headers.get_all("x-a").iter().map(HeaderValue::as_bytes).collect();
    assert_eq!(values, [&b"1"[..], b"\xff"]);
}

#[test]
fn client_of_a_call_is_the_peer_of_envoy_unless_that_is_trusted() {
    let client = |source: &str, names: &[&'static str], fields: &[(&str, &str)]| {
        let settings = trusting(names);
        let head = check::read_request(&call(source, http_request(fields)), &settings).unwrap();
        settings.client_behind("10.0.0.1".parse().unwrap(), &head.headers).ip.to_string()
    };
    let forged =
        [("x-forwarded-for", "192.0.2.9"), ("x-real-ip", "192.0.2.9"), ("forwarded", "for=192.0.2.9")];
    for named in ["x-forwarded-for", "x-real-ip", "forwarded"] {
        assert_eq!(client("198.51.100.7", &[named], &forged), "198.51.100.7", "{named}");
        assert_eq!(client("198.51.100.7", &[named], &[]), "198.51.100.7", "{named}");
        assert_eq!(client("2001:db8::1", &[named], &forged), "2001:db8::1", "{named}");
        assert_eq!(client("10.0.0.5", &[named], &forged), "192.0.2.9", "{named}");
        assert_eq!(client("10.0.0.5", &[named], &[]), "10.0.0.5", "{named}");
    }
}

#[test]
fn malformed_calls_are_explained() {
    let settings = trusting(&["x-forwarded-for"]);
    let problem = |data: &[u8]| check::read_request(data, &settings).unwrap_err().to_string();
    let with = |change: fn(&mut auth::attribute_context::HttpRequest)| {
        let mut http = http_request(&[]);
        change(&mut http);
        call("192.0.2.1", http)
    };
    let cases = [
        (vec![], "there is no message"),
        (vec![1, 0, 0, 0, 0], "compressed messages are not supported"),
        (vec![0, 0, 0, 0, 9, 1], "the length of the message is not that of its prefix"),
        (framed(&[0xff; 3]), "not a protobuf message"),
        (framed(&[]), "attributes are missing"),
        (framed(&[0x0a, 0]), "attributes.request.http is missing"),
        (with(|http| http.method = "P T".into()), "method is invalid"),
        (with(|http| http.path = "a".into()), "path is invalid"),
        (with(|http| http.path = "http://other.test/".into()), "path is invalid"),
        (with(|http| http.host = "a\nb".into()), "host is invalid"),
        (with(|http| drop(http.headers.insert("a b".into(), String::new()))), "a header is invalid"),
        (with(|http| drop(http.headers.insert("a".into(), "\n".into()))), "a header is invalid"),
    ];
    for (data, expected) in cases {
        assert_eq!(problem(&data), format!("invalid CheckRequest: {expected}"));
    }
    let pipe = auth::AttributeContext {
        request: Some(auth::attribute_context::Request {
            http: Some(http_request(&[])),
            ..auth::attribute_context::Request::default()
        }),
        ..auth::AttributeContext::default()
    };
    let unnamed = framed(&auth::CheckRequest { attributes: Some(pipe) }.encode_to_vec());
    assert!(problem(&unnamed).starts_with("missing header x-forwarded-for"));
}

/// Decodes the content of a response with the messages that Envoy's own types define.
fn decoded(content: &[u8]) -> (i32, auth::check_response::HttpResponse) {
    assert_eq!(content[0], 0);
    let response = auth::CheckResponse::decode(&content[5..]).unwrap();
    (response.status.unwrap().code, response.http_response.unwrap())
}

fn texts(options: &[core::HeaderValueOption]) -> Vec<String> {
    let text = |option: &core::HeaderValueOption| {
        let header = option.header.as_ref().unwrap();
        #[expect(deprecated, reason = "external authorization reads it")]
        let sign = if option.append.as_ref().unwrap().value { "+" } else { "" };
        format!("{}{sign}={}", header.key, header.value)
    };
    options.iter().map(text).collect()
}

#[test]
fn decisions_are_messages_of_envoy() {
    let mut headers = HeaderMap::new();
    headers.append("x-ratelimit-remaining", HeaderValue::from_static("1"));
    let (code, response) = decoded(&check::admission(&headers));
    let auth::check_response::HttpResponse::OkResponse(admitted) = response else { panic!("{response:?}") };
    assert_eq!(
        (code, texts(&admitted.response_headers_to_add)),
        (0, vec!["x-ratelimit-remaining=1".to_owned()])
    );
    assert_eq!(
        (admitted.headers.len(), admitted.headers_to_remove),
        (0, vec!["x-weir-over-limit".to_owned()])
    );
    headers.append("x-weir-over-limit", HeaderValue::from_static("a"));
    headers.append("x-weir-over-limit", HeaderValue::from_static("b"));
    let (_, response) = decoded(&check::admission(&headers));
    let auth::check_response::HttpResponse::OkResponse(admitted) = response else { panic!("{response:?}") };
    assert_eq!(texts(&admitted.headers), ["x-weir-over-limit=a", "x-weir-over-limit+=b"]);
    assert!(admitted.headers_to_remove.is_empty());
    let (code, response) = decoded(&check::denial(http::StatusCode::TOO_MANY_REQUESTS, &headers, b"slow\n"));
    let auth::check_response::HttpResponse::DeniedResponse(denied) = response else { panic!("{response:?}") };
    assert_eq!((code, denied.status.unwrap().code, denied.body.as_str()), (8, 429, "slow\n"));
    assert_eq!(denied.headers.len(), 3);
}

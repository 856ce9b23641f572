//! Fuzz targets for header values from clients and proxies, and for the PROXY protocol.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU64;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use http::header::{AUTHORIZATION, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};

use super::{header_lines, split_selector};
use weir::proxy;
use weir_http::headers::Headers;
use weir_limiter::percent::Percent;
use weir_limiter::timestamp::Timestamp;
use weir_limits::ProviderSignals;
use weir_net::listener::proxy_protocol::{ParseOutcome, Version, parse};
use weir_policy::identify::body::RequestFields;
use weir_policy::identify::cidr::CidrSet;
use weir_policy::identify::client_headers::AddressHeader;
use weir_policy::identify::forwarded::{X_FORWARDED_FOR, appended, hops_from_nearest, write_ip};
use weir_policy::identify::jwt::claim::ClaimName;
use weir_policy::identify::jwt::keys::{KeySet, VerificationKey};
use weir_policy::identify::jwt::source::TokenSource;
use weir_policy::identify::jwt::{self, TokenTrust, Verifier};
use weir_policy::identify::{self, client_ip, identify};
use weir_policy::rules::cost::{ByteCost, Cost, CostModel, HeaderCost, Refunds};
use weir_telemetry::spans::context::{IncomingTrace, TraceContext};

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 200));

/// The hops of X-Forwarded-For do not depend on how they are split into lines, and an appended hop is the nearest.
pub fn forwarded(data: &[u8]) {
    let headers = header_lines(&X_FORWARDED_FOR, data);
    let hops: Vec<_> = hops_from_nearest(&headers).collect();
    for hop in hops.iter().flatten() {
        let mut text = Vec::new();
        write_ip(&mut text, *hop);
        let again: Vec<_> = hops_from_nearest(&header_lines(&X_FORWARDED_FOR, &text)).collect();
        assert_eq!(again, [Some(*hop)], "a written address is not read back");
    }
    let appended_headers = HeaderMap::from_iter([(X_FORWARDED_FOR, appended(&headers, PEER))]);
    let with_peer: Vec<_> = hops_from_nearest(&appended_headers).collect();
    assert_eq!(with_peer.split_first(), Some((&Some(PEER), &hops[..])));

    let untrusted = client_ip::resolve(PEER, &headers, &CidrSet::default(), &[AddressHeader::default()]);
    assert_eq!(
        (untrusted.ip, untrusted.peer_is_trusted),
        (PEER, false),
        "an untrusted peer sets its own address"
    );
    let trusted: CidrSet = "192.0.2.0/24".parse().ok().into_iter().collect();
    let client = client_ip::resolve(PEER, &headers, &trusted, &[AddressHeader::default()]);
    let nearest_untrusted = hops.iter().map_while(|hop| *hop).find(|hop| !trusted.contains(*hop));
    assert!(client.peer_is_trusted && (trusted.contains(client.ip) || Some(client.ip) == nearest_untrusted));
}

/// A host has one normalised form, regardless of user information, port, trailing dot and case.
pub fn host(data: &[u8]) {
    use weir_policy::identify::host::{is_valid, normalise};
    let Ok(authority) = std::str::from_utf8(data) else { return };
    if !is_valid(data) {
        return;
    }
    let host = normalise(authority);
    assert_eq!(normalise(&host), host, "normalising twice changes a host");
    assert!(!host.bytes().any(|byte| byte.is_ascii_uppercase() || byte == b'@'));
    for spelling in [format!("{host}:8080"), format!("{host}."), host.to_ascii_uppercase()] {
        assert_eq!(normalise(&spelling), host, "{spelling:?}");
    }
    let headers = HeaderMap::from_iter(HeaderValue::from_bytes(data).ok().map(|value| (HOST, value)));
    assert_eq!(identify::host::RequestHost::from_request(&Uri::from_static("/"), &headers).as_str(), host);
}

/// A PROXY header gives the same result, or is incomplete, when truncated. A parsed address parses again from its text.
pub fn proxy_protocol(data: &[u8]) {
    let full = parse(data);
    for end in (0..data.len()).step_by(1 + data.len() / 200) {
        let part = parse(&data[..end]);
        assert!(part == full || part == ParseOutcome::Partial, "{part:?} becomes {full:?}");
    }
    let ParseOutcome::Complete { header, length } = full else { return };
    assert!(length <= data.len() && parse(&data[..length]) == full, "a header depends on what follows it");
    assert!(length == 0 || parse(&data[..length - 1]) == ParseOutcome::Partial);
    let Some(source) = header.source else { return };
    let line = match source {
        SocketAddr::V4(v4) => format!("PROXY TCP4 {} 127.0.0.1 {} 80\r\n", v4.ip(), v4.port()),
        SocketAddr::V6(v6) => format!("PROXY TCP6 {} ::1 {} 80\r\n", v6.ip(), v6.port()),
    };
    match parse(line.as_bytes()) {
        ParseOutcome::Complete { header, .. } => {
            assert_eq!((header.version, header.source), (Version::V1, Some(source)));
        }
        other => panic!("{line:?} is {other:?}"),
    }
}

/// The cost of a request is within its bounds, and adding values never reduces it.
pub fn cost(data: &[u8]) {
    let name = HeaderName::from_static("x-cost");
    let (selector, lines) = split_selector(data);
    let max = (selector & 1 == 1).then_some(1000);
    let header_cost = HeaderCost { name: name.clone(), default: 1, max_units: max };
    let cost_model = CostModel { cost: Cost::Header(header_cost), counts: None, refunds: Refunds::default() };
    let mut headers = header_lines(&name, lines);
    let cost = cost_model.units_to_reserve(&headers, RequestFields::Absent, None);
    assert!(cost >= 1 && max.is_none_or(|max| cost <= max), "a request costs {cost}");
    headers.append(&name, HeaderValue::from_static("7"));
    assert!(
        cost_model.units_to_reserve(&headers, RequestFields::Absent, None) >= cost.max(7),
        "another number makes a request cheaper"
    );
    headers.append(&name, HeaderValue::from_static("-1"));
    assert_eq!(
        cost_model.units_to_reserve(&headers, RequestFields::Absent, None),
        max.unwrap_or(u32::MAX),
        "an invalid number does not cost the maximum"
    );

    let byte_cost = ByteCost { bytes_per_unit: NonZeroU64::MIN.saturating_add(1023), max_units: max };
    let cost_model =
        CostModel { cost: Cost::RequestBytes(byte_cost), counts: None, refunds: Refunds::default() };
    let length = HeaderMap::from_iter(
        HeaderValue::from_bytes(lines).ok().map(|value| (http::header::CONTENT_LENGTH, value)),
    );
    assert!((1..=max.unwrap_or(u32::MAX)).contains(&cost_model.units_to_reserve(
        &length,
        RequestFields::Absent,
        None
    )));
}

/// A load is a finite number that is at least 0, and an invalid report gives none.
pub fn load_report(data: &[u8]) {
    let (selector, report) = split_selector(data);
    let name = ["endpoint-load-metrics", "endpoint-load-metrics-bin"][usize::from(selector & 1)];
    let Ok(value) = HeaderValue::from_bytes(report) else { return };
    let headers = HeaderMap::from_iter([(HeaderName::from_static(name), value)]);
    if let Some(load) = proxy::fuzzing::load_report(&headers) {
        assert!(load.is_finite() && load >= 0.0, "a load of {load}");
    }
}

/// What a response of a provider signals does not depend on the form of its headers, and times are bounded by the numbers
/// that can be written.
pub fn provider_signals(data: &[u8]) {
    const NAMES: [&str; 8] = [
        "retry-after",
        "retry-after-ms",
        "grpc-retry-pushback-ms",
        "x-ratelimit-remaining",
        "x-ratelimit-reset",
        "ratelimit",
        "x-ratelimit-remaining-tokens",
        "x-ratelimit-reset-tokens",
    ];
    let (mut map, mut raw) = (HeaderMap::new(), Headers::default());
    for (name, line) in NAMES.into_iter().cycle().zip(data.split(|byte| *byte == b'\n').take(16)) {
        if let Ok(value) = HeaderValue::from_bytes(line)
            && !line.is_empty()
        {
            let name = HeaderName::from_static(name);
            raw.append(name.clone(), &value);
            map.append(name, value);
        }
    }
    let now = Timestamp::from_secs(1_767_323_045);
    let signals = ProviderSignals::from_headers(&raw, now);
    assert_eq!(signals, ProviderSignals::from_headers(&Headers::from(map), now));
    assert!(!signals.forbids_retry || raw.contains(&HeaderName::from_static("grpc-retry-pushback-ms")));
}

/// A trace context that Weir writes is read back as Weir's span, whatever the incoming format.
pub fn trace(data: &[u8]) {
    const NAMES: [&str; 6] =
        ["traceparent", "b3", "x-b3-traceid", "x-b3-spanid", "x-b3-sampled", "x-b3-flags"];
    let mut headers = HeaderMap::new();
    for (name, line) in NAMES.into_iter().cycle().zip(data.split(|byte| *byte == b'\n').take(12)) {
        if let Ok(value) = HeaderValue::from_bytes(line)
            && !line.is_empty()
        {
            headers.append(name, value);
        }
    }
    let (incoming, tracestate) = IncomingTrace::from_headers(&headers);
    let Some(context) = TraceContext::new(incoming, tracestate, Percent::ONE_HUNDRED, 1 << 100, 77) else {
        return;
    };
    context.write_headers(&mut headers);
    let (written, _) = IncomingTrace::from_headers(&headers);
    let next = TraceContext::new(written, None, Percent::from_hundredths(0), 3, 4);
    let next = next.unwrap_or_else(|| panic!("a sampled trace is lost"));
    assert!(next.is_sampled && next.trace_id == context.trace_id && next.parent_span_id() == Some(77));
    headers.remove("traceparent");
    let (incoming, tracestate) = IncomingTrace::from_headers(&headers);
    let b3 = TraceContext::new(incoming, tracestate, Percent::ONE_HUNDRED, 3, 4);
    if let Some(b3) = b3.filter(|b3| b3.parent_span_id().is_some()) {
        assert_eq!((b3.trace_id, b3.parent_span_id()), (context.trace_id, Some(77)), "B3 and W3C differ");
    }
}

/// A token with an invalid signature gives no claims, and a cached token gives the same claims again.
pub fn token(data: &[u8]) {
    static NAMES: LazyLock<Vec<ClaimName>> =
        LazyLock::new(|| ["sub", "realm.roles"].into_iter().filter_map(ClaimName::new).collect());
    static SIGNED: LazyLock<identify::IdentifySettings> = LazyLock::new(|| {
        verifier(TokenTrust::Signed(
            [VerificationKey::from_secret(b"a secret that no fuzzer knows")].into_iter().collect::<KeySet>(),
        ))
    });
    static VERIFIED: LazyLock<identify::IdentifySettings> =
        LazyLock::new(|| verifier(TokenTrust::PreVerified));

    fn verifier(trust: TokenTrust) -> identify::IdentifySettings {
        let settings = jwt::JwtSettings {
            source: TokenSource::Header(AUTHORIZATION),
            trust,
            issuers: Box::default(),
            audiences: Box::default(),
            leeway: Duration::ZERO,
        };
        let verifier = Verifier::new(settings, NAMES.iter().cloned(), [1, 2]);
        identify::IdentifySettings { jwt: Some(Arc::new(verifier)), ..identify::IdentifySettings::default() }
    }

    let headers = header_lines(&AUTHORIZATION, data);
    let (uri, now) = (Uri::from_static("/"), Timestamp::from_nanos(1 << 60));
    let claims = |settings: &identify::IdentifySettings| {
        let attributes = identify(&Method::GET, &uri, &headers, PEER, settings, now);
        let attributes = attributes.unwrap_or_else(|_| panic!("`/` is a path"));
        NAMES
            .iter()
            .map(|claim| attributes.claim(claim).map(|value| value.map(str::to_owned)))
            .collect::<Vec<_>>()
    };
    assert!(claims(&SIGNED).iter().all(|claim| !matches!(claim, Ok(Some(_)))), "a forged token gives claims");
    assert_eq!(claims(&VERIFIED), claims(&VERIFIED), "a cached token gives other claims");
}

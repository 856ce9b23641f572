use http::HeaderName;

use super::*;

fn headers(all: &[(&'static str, &'static str)]) -> HeaderMap {
    all.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_nanos(seconds * 1_000_000_000)
}

/// What a browser sends behind a proxy, with more.
fn browser(more: &[(&'static str, &'static str)]) -> HeaderMap {
    let mut all = headers(&[
        ("host", "example.com"),
        ("user-agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"),
        ("accept", "text/html,*/*;q=0.8"),
        ("accept-language", "en"),
        ("accept-encoding", "gzip"),
        ("referer", "https://example.com/"),
        ("upgrade-insecure-requests", "1"),
        ("sec-fetch-dest", "document"),
        ("sec-fetch-user", "?1"),
        ("sec-ch-ua", "\"Chromium\""),
        ("sec-gpc", "1"),
        ("priority", "u=0, i"),
        ("x-forwarded-for", "192.0.2.1"),
        ("x-request-id", "7"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ]);
    all.extend(headers(more));
    all
}

fn asked(headers: &HeaderMap) -> Asked {
    Asked::with(headers, &[], false)
}

fn kept(request: &[(&'static str, &'static str)], answer: &[(&'static str, &'static str)]) -> Option<Kept> {
    Kept::new(&asked(&browser(request)), StatusCode::OK, &headers(answer), at(100))
}

const DAY: Duration = Duration::from_secs(86_400);

#[test]
fn only_a_good_answer_is_kept() {
    let nobody = asked(&HeaderMap::new());
    for status in [StatusCode::NO_CONTENT, StatusCode::PARTIAL_CONTENT, StatusCode::NOT_FOUND] {
        assert!(Kept::new(&nobody, status, &HeaderMap::new(), at(0)).is_none(), "{status}");
    }
    assert!(Kept::new(&nobody, StatusCode::OK, &HeaderMap::new(), at(0)).is_some());
}

#[test]
fn an_answer_that_is_for_one_client_is_not_kept() {
    for control in ["private", "no-store", "max-age=60, Private", "no-cache=\"x\""] {
        assert!(kept(&[], &[("cache-control", control)]).is_none(), "{control}");
    }
    assert!(kept(&[], &[("set-cookie", "a=b"), ("cache-control", "public")]).is_none());
    assert!(kept(&[], &[]).is_some());
    for name in [
        "authorization",
        "proxy-authorization",
        "cookie",
        "x-api-key",
        "x-auth-request-user",
        "x-tenant",
        "x-account",
        "x-customer-id",
        "x-forwarded-client-cert",
        "x-forwarded-email",
        "x-forwarded-user",
        "x-ms-client-principal",
        "x-amzn-oidc-identity",
        "x-envoy-peer-metadata",
        "ssl-client-cert",
        "from",
        "baggage",
        "what-nobody-knows",
    ] {
        assert!(kept(&[(name, "me")], &[]).is_none(), "{name}");
        assert!(kept(&[(name, "me")], &[("cache-control", "public")]).is_some(), "{name}");
        assert!(kept(&[(name, "me")], &[("cache-control", "s-maxage=9")]).is_some(), "{name}");
    }
}

#[test]
fn what_a_rule_tells_clients_apart_by_is_personal_whatever_its_name() {
    let telling = [HeaderName::from_static("x-real-ip"), HeaderName::from_static("user-agent")];
    let kept = |headers: &HeaderMap, telling: &[HeaderName]| {
        Kept::new(&Asked::with(headers, telling, false), StatusCode::OK, &HeaderMap::new(), at(100)).is_some()
    };
    let plain = headers(&[("accept", "*/*")]);
    assert!(kept(&browser(&[]), &[]) && kept(&plain, &telling) && !kept(&browser(&[]), &telling));
}

#[test]
fn a_client_with_a_certificate_is_somebody_whatever_it_sends() {
    let may_be_kept = |is_certified, answer: &[(&'static str, &'static str)]| {
        let asked = Asked::with(&browser(&[]), &[], is_certified);
        Kept::new(&asked, StatusCode::OK, &headers(answer), at(100)).is_some()
    };
    assert!(may_be_kept(false, &[]) && !may_be_kept(true, &[]));
    assert!(may_be_kept(true, &[("cache-control", "public")]));
}

#[test]
fn answers_that_vary_go_to_those_who_asked_alike() {
    let varied = kept(&[("accept-encoding", "br")], &[("vary", "Accept-Encoding, origin")]).unwrap();
    let suits = |request| varied.suits(&asked(&browser(request)), at(100), DAY);
    assert!(suits(&[("accept-encoding", "br"), ("accept", "text/html")]));
    assert!(!suits(&[("accept-encoding", "gzip")]));
    assert!(!suits(&[("accept-encoding", "br"), ("origin", "https://example.com")]));
    for vary in ["*", "x-tenant", "accept, user-agent"] {
        assert!(kept(&[], &[("vary", vary)]).is_none(), "{vary}");
    }
}

#[test]
fn an_answer_too_old_is_given_to_nobody() {
    let plain = kept(&[], &[("age", "50")]).unwrap();
    let nobody = asked(&HeaderMap::new());
    assert!(plain.suits(&nobody, at(160), Duration::from_secs(60)));
    assert!(!plain.suits(&nobody, at(161), Duration::from_secs(60)));
    let strict = kept(&[], &[("age", "50"), ("cache-control", "must-revalidate, max-age=60")]).unwrap();
    assert!(strict.suits(&nobody, at(109), DAY));
    assert!(!strict.suits(&nobody, at(110), DAY));
    for never in ["s-maxage=0", "must-revalidate", "proxy-revalidate", "public, max-age=0, must-revalidate"] {
        assert!(!kept(&[], &[("cache-control", never)]).unwrap().suits(&nobody, at(100), DAY), "{never}");
    }
}

#[test]
fn its_age_counts_from_where_it_was_made() {
    let plain = kept(&[], &[("age", "50"), ("content-type", "text/css"), ("link", "a")]).unwrap();
    let mut refusal = headers(&[("retry-after", "7"), ("content-type", "text/plain")]);
    plain.extend(&mut refusal, at(107));
    assert_eq!(refusal["age"], "57");
    assert_eq!(refusal["warning"], "110 - \"Response is Stale\"");
    assert_eq!(refusal["retry-after"], "7");
    assert_eq!(refusal["link"], "a");
    assert_eq!(refusal["content-type"], "text/css");
}

use http::HeaderName;

use super::*;

fn headers(all: &[(&'static str, &'static str)]) -> HeaderMap {
    all.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_nanos(seconds * 1_000_000_000)
}

fn cached(response: &[(&'static str, &'static str)]) -> Option<CachedResponse> {
    CachedResponse::new(StatusCode::OK, &headers(response), at(100))
}

const DAY: Duration = Duration::from_secs(86_400);

#[test]
fn only_ok_responses_are_cached_as_fallback() {
    for status in [StatusCode::NO_CONTENT, StatusCode::PARTIAL_CONTENT, StatusCode::NOT_FOUND] {
        assert!(CachedResponse::new(status, &HeaderMap::new(), at(0)).is_none(), "{status}");
    }
    assert!(cached(&[]).is_some());
}

#[test]
fn private_responses_are_not_cached_as_fallback() {
    for control in ["private", "no-store", "max-age=60, Private", "no-cache=\"x\""] {
        assert!(cached(&[("cache-control", control)]).is_none(), "{control}");
    }
    assert!(cached(&[("set-cookie", "a=b"), ("cache-control", "public")]).is_none());
    let may = |kept: Option<CachedResponse>, is_personal| {
        kept.unwrap().may_be_stored(is_personal, &CacheHeaderRules::default())
    };
    assert!(may(cached(&[]), false) && !may(cached(&[]), true));
    for control in ["public", "s-maxage=9"] {
        assert!(may(cached(&[("cache-control", control)]), true), "{control}");
    }
}

#[test]
fn response_that_varies_by_an_unkeyed_header_is_not_stored() {
    let special = |name| Arc::from([HeaderName::from_static(name)]);
    let headers = CacheHeaderRules { personal: special("accept-language"), ignored: special("referer") };
    let may = |vary| cached(&[("vary", vary)]).is_some_and(|kept| kept.may_be_stored(false, &headers));
    for vary in ["", "Accept-Encoding, origin", "User-Agent", "sec-ch-ua,Sec-Fetch-Site", "x-forwarded-proto"]
    {
        assert!(may(vary), "{vary}");
    }
    for vary in
        ["*", "origin, *", "cookie", "x-tenant", "x-forwarded-host", "accept-language", "referer", "a b"]
    {
        assert!(!may(vary), "{vary}");
    }
}

#[test]
fn cached_response_is_unusable_after_its_maximum_age() {
    let plain = cached(&[("age", "50")]).unwrap();
    assert!(plain.is_usable(at(160), Duration::from_secs(60)));
    assert!(!plain.is_usable(at(161), Duration::from_secs(60)));
    let strict = cached(&[("age", "50"), ("cache-control", "must-revalidate, max-age=60")]).unwrap();
    assert!(strict.is_usable(at(109), DAY));
    assert!(!strict.is_usable(at(110), DAY));
    for never in ["s-maxage=0", "must-revalidate", "proxy-revalidate", "public, max-age=0, must-revalidate"] {
        assert!(!cached(&[("cache-control", never)]).unwrap().is_usable(at(100), DAY), "{never}");
    }
}

#[test]
fn age_of_a_cached_response_includes_that_at_the_upstream() {
    let plain = cached(&[("age", "50"), ("content-type", "text/css"), ("link", "a")]).unwrap();
    let mut refusal = headers(&[("retry-after", "7"), ("content-type", "text/plain")]);
    plain.extend(&mut refusal, at(107));
    assert_eq!(refusal["age"], "57");
    assert_eq!(refusal["warning"], "110 - \"Response is Stale\"");
    assert_eq!(refusal["retry-after"], "7");
    assert_eq!(refusal["link"], "a");
    assert_eq!(refusal["content-type"], "text/css");
}

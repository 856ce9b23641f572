use super::*;

fn headers(all: &[(&'static str, &'static str)]) -> HeaderMap {
    all.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_nanos(seconds * 1_000_000_000)
}

fn kept(request: &[(&'static str, &'static str)], answer: &[(&'static str, &'static str)]) -> Option<Kept> {
    Kept::new(&Asked::with(&headers(request)), StatusCode::OK, &headers(answer), at(100))
}

const DAY: Duration = Duration::from_secs(86_400);

#[test]
fn only_a_good_answer_is_kept() {
    let nobody = Asked::with(&HeaderMap::new());
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
    for name in ["authorization", "cookie", "x-api-key", "x-auth-request-user", "x-session-id", "x-jwt"] {
        assert!(kept(&[(name, "me")], &[]).is_none(), "{name}");
        assert!(kept(&[(name, "me")], &[("cache-control", "public")]).is_some(), "{name}");
        assert!(kept(&[(name, "me")], &[("cache-control", "s-maxage=9")]).is_some(), "{name}");
    }
    assert!(kept(&[("accept", "*/*"), ("x-request-id", "7")], &[]).is_some());
}

#[test]
fn answers_that_vary_go_to_those_who_asked_alike() {
    let varied = kept(&[("accept-encoding", "br")], &[("vary", "Accept-Encoding, origin")]).unwrap();
    let suits = |request| varied.suits(&Asked::with(&headers(request)), at(100), DAY);
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
    let nobody = Asked::with(&HeaderMap::new());
    assert!(plain.suits(&nobody, at(160), Duration::from_secs(60)));
    assert!(!plain.suits(&nobody, at(161), Duration::from_secs(60)));
    let strict = kept(&[], &[("age", "50"), ("cache-control", "must-revalidate, max-age=60")]).unwrap();
    assert!(strict.suits(&nobody, at(110), DAY));
    assert!(!strict.suits(&nobody, at(111), DAY));
    assert!(!kept(&[], &[("cache-control", "proxy-revalidate")]).unwrap().suits(&nobody, at(101), DAY));
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

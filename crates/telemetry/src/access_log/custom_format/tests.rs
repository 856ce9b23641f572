use http::{HeaderValue, Method, StatusCode, Version};

use super::*;
use weir_limiter::timestamp::Timestamp;
use weir_policy::rules::outcome::DecisionOutcome;

fn line(format: &str) -> String {
    let format = CustomFormat::parse(format).unwrap_or_else(|error| panic!("{format}: {error}"));
    let headers: Vec<_> = format
        .other_headers()
        .iter()
        .map(|name| (name == "x-tenant").then(|| HeaderValue::from_static("acme")))
        .collect();
    let rule = LoggedRule {
        rule: "per-ip",
        outcome: DecisionOutcome::Soft,
        key: Some("client_ip=192.0.2.2"),
        limit: Some(10),
        remaining: Some(0),
        delay: std::time::Duration::ZERO,
        cost: Some(42),
        shadow_rules: &["new", "newer"],
    };
    let entry = AccessLogEntry {
        start: Timestamp::from_nanos(1_795_239_153_704_000_000),
        method: &Method::GET,
        path: "/one?a=\"b\"",
        protocol: Version::HTTP_11,
        status: Some(StatusCode::OK),
        response_flags: "",
        bytes_received: 1,
        bytes_sent: 7,
        duration: std::time::Duration::from_micros(2400),
        class: None,
        upstream_time: None,
        x_forwarded_for: None,
        user_agent: Some(b"curl"),
        request_id: Some(b"5b7a"),
        authority: Some(b"a.test"),
        other_headers: &headers,
        upstream_host: None,
        attempts: 0,
        client_ip: [192, 0, 2, 2].into(),
        decision: Some(rule),
    };
    let mut line = Vec::new();
    format.write(&entry, &mut line);
    String::from_utf8(line).unwrap()
}

#[test]
fn operators_write_their_values() {
    assert_eq!(
        line("%START_TIME% %req(:method)% %REQ(:PATH):4% %RESPONSE_CODE% %DURATION% 100%%"),
        "2026-11-21T05:32:33.704Z GET /one 200 2 100%\n"
    );
    assert_eq!(
        line(
            "%WEIR_RULE% %WEIR_OUTCOME% %WEIR_KEY% %WEIR_REMAINING%/%WEIR_LIMIT% %WEIR_SHADOW_RULES% %WEIR_COST%\n"
        ),
        "per-ip soft client_ip=192.0.2.2 0/10 new,newer 42\n"
    );
}

#[test]
fn path_is_written_with_or_without_the_query() {
    assert_eq!(line("%PATH(NQ)% %path(nq:orig):2% %PATH(NQ:ORIG_OR_PATH)%"), "/one /o /one\n");
    for format in ["%PATH%", "%PATH()%", "%PATH(WQ)%", "%PATH(:PATH)%", "%PATH(WQ:ORIG)%"] {
        assert_eq!(line(format), "/one?a=\\x22b\\x22\n", "{format}");
    }
}

#[test]
fn start_time_has_the_given_format() {
    assert_eq!(
        line("[%START_TIME(%Y-%m-%d (%H:%M:%S.%3f)%] %start_time(%s)% %START_TIME()%"),
        "[2026-11-21 (05:32:33.704] 1795239153 2026-11-21T05:32:33.704Z\n"
    );
    let error = CustomFormat::parse("%START_TIME(%Y %Q)%").unwrap_err();
    assert_eq!(error, FormatError::UnknownTimeSpecifier("%Q".to_owned()));
    assert!(error.to_string().contains("expected one of %Y, %m, "), "{error}");
}

#[test]
fn missing_values_are_a_dash() {
    assert_eq!(
        line(
            "%REQ(X-NONE)%|%RESPONSE_FLAGS%|%UPSTREAM_HOST%|%WEIR_DELAY_MS%|%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)%"
        ),
        "-|-|-|-|-\n"
    );
}

#[test]
fn first_header_that_is_present_is_written() {
    assert_eq!(line("%REQ(X-NONE?X-TENANT)% %REQ(X-TENANT?USER-AGENT)%"), "acme acme\n");
    assert_eq!(line("%REQ(X-NONE?USER-AGENT):2%"), "cu\n");
}

#[test]
fn values_of_clients_are_escaped() {
    assert_eq!(line("\"%REQ(:PATH)%\""), "\"/one?a=\\x22b\\x22\"\n");
}

#[test]
fn invalid_formats_are_rejected_with_the_known_operators() {
    let error = |format| CustomFormat::parse(format).unwrap_err();
    assert_eq!(error("100%"), FormatError::Unterminated);
    assert_eq!(error("%START_TIME(%Y)"), FormatError::Unterminated);
    assert_eq!(error("%NO_SUCH%"), FormatError::UnknownOperator("NO_SUCH".to_owned()));
    assert!(error("%NO_SUCH%").to_string().contains("%WEIR_RULE%"));
    for format in
        ["%REQ(%", "%REQ()%", "%REQ(a b)%", "%DURATION:x%", "%REQ(X):-1%", "%PATH(XQ)%", "%PATH(NQ:X)%"]
    {
        assert!(matches!(error(format), FormatError::InvalidArgument(_)), "{format}");
    }
    let many: String = (0..=MAX_OTHER_HEADERS).map(|index| format!("%REQ(x-{index})%")).collect();
    assert_eq!(error(&many), FormatError::TooManyHeaders);
}

//! CORS headers of local replies (Fetch standard, "HTTP extensions"), without which a browser hides a rejection from the
//! page.
//!
//! A browser also hides the response if it has rejected the preflight before it, and it accepts only a success for that.
//! So a rejected preflight from an allowed origin is answered with 204 instead of the rejection: it allows the request
//! that follows, which is then decided by itself.

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::request_details::{Preflight, RequestDetails};
use weir_http::headers::Headers;

/// Headers that `cors` sets, and that the configuration must not set beside it.
pub const CORS_HEADERS: [HeaderName; 3] =
    [ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_EXPOSE_HEADERS];

/// Which pages may read the local replies of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorsSettings {
    pub origins: Box<[AllowedOrigin]>,
    /// Whether pages may read replies to requests with cookies.
    pub allows_credentials: bool,
    /// Value of `access-control-expose-headers`.
    pub exposed: HeaderValue,
}

/// Origins of pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedOrigin {
    /// Every origin.
    Any,
    /// One origin, as browsers write it.
    Exact(Box<str>),
    /// Every host below a domain.
    Subdomains {
        /// Scheme with `://`.
        scheme: Box<str>,
        /// Domain with a dot before it, and the port.
        domain: Box<str>,
    },
}

impl AllowedOrigin {
    fn allows(&self, origin: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(allowed) => **allowed == *origin,
            Self::Subdomains { scheme, domain } => {
                let host = origin.strip_prefix(&**scheme).and_then(|host| host.strip_suffix(&**domain));
                host.is_some_and(|host| {
                    let is_part =
                        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
                    !host.is_empty() && host.bytes().all(is_part)
                })
            }
        }
    }
}

impl CorsSettings {
    /// Returns the origin of a request if it is allowed and has the form of one.
    pub fn allowed_origin<'a>(&self, request: &'a RequestDetails) -> Option<&'a str> {
        let origin = request.origin.as_ref()?.to_str().ok()?;
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b":/.-_[]+".contains(&byte);
        let is_allowed = self.origins.iter().any(|allowed| allowed.allows(origin));
        (is_allowed && origin.bytes().all(is_part)).then_some(origin)
    }

    /// Whether every response is the same for all origins.
    fn allows_any(&self) -> bool {
        !self.allows_credentials && self.origins.contains(&AllowedOrigin::Any)
    }

    /// Sets the headers of a reply to `request`. Those of a stored response are replaced, because they may allow another
    /// page.
    pub fn write(&self, request: &RequestDetails, headers: &mut Headers) {
        for name in CORS_HEADERS {
            if headers.contains(&name) {
                headers.remove(&name);
            }
        }
        if !self.allows_any() {
            vary_by(headers, "origin");
        }
        if let Some(origin) = self.allowed_origin(request) {
            self.write_allowed(origin, headers);
            headers.set(&ACCESS_CONTROL_EXPOSE_HEADERS, &self.exposed);
        }
    }

    fn write_allowed(&self, origin: &str, headers: &mut Headers) {
        let any = self.allows_any();
        headers.set_text(&ACCESS_CONTROL_ALLOW_ORIGIN, if any { b"*".to_vec() } else { origin.into() });
        if self.allows_credentials {
            headers.set(&ACCESS_CONTROL_ALLOW_CREDENTIALS, &HeaderValue::from_static("true"));
        }
    }

    /// Returns the headers of the response to a rejected preflight; `None` if the reply is to be the rejection.
    pub fn preflight_headers(&self, request: &RequestDetails) -> Option<Headers> {
        let Preflight { method, headers: names } = request.preflight.as_ref()?;
        let origin = self.allowed_origin(request)?;
        let mut headers = Headers::from(HeaderMap::new());
        self.write_allowed(origin, &mut headers);
        headers.set(&ACCESS_CONTROL_ALLOW_METHODS, method);
        if let Some(names) = names {
            headers.set(&ACCESS_CONTROL_ALLOW_HEADERS, names);
        }
        // Whether the upstream allows the request is asked again next time.
        headers.set(&ACCESS_CONTROL_MAX_AGE, &HeaderValue::from_static("0"));
        let varies = "origin, access-control-request-method, access-control-request-headers";
        headers.set(&VARY, &HeaderValue::from_static(varies));
        Some(headers)
    }
}

/// Adds a header to `Vary`, unless that names it.
fn vary_by(headers: &mut Headers, name: &'static str) {
    let names = |value: &[u8]| {
        let mut members = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        members.any(|member| member == b"*" || member.eq_ignore_ascii_case(name.as_bytes()))
    };
    if !headers.get_all(&VARY).any(names) {
        headers.append(VARY, &HeaderValue::from_static(name));
    }
}

/// Returns the value of `access-control-expose-headers` for these names.
pub fn exposed_headers(names: impl IntoIterator<Item = HeaderName>) -> HeaderValue {
    let mut text: Vec<u8> = Vec::new();
    for name in names {
        if !text.is_empty() {
            text.extend_from_slice(b", ");
        }
        text.extend_from_slice(name.as_str().as_bytes());
    }
    HeaderValue::from_bytes(&text).unwrap_or_else(|_| HeaderValue::from_static("retry-after"))
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use http::{Method, Uri};

    use super::*;

    fn cors(origins: &[AllowedOrigin], allows_credentials: bool) -> CorsSettings {
        CorsSettings {
            origins: origins.into(),
            allows_credentials,
            exposed: exposed_headers([http::header::RETRY_AFTER]),
        }
    }

    fn request(method: &Method, headers: &[(&'static str, &'static str)]) -> RequestDetails {
        let headers = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect();
        let client = IpAddr::V4(Ipv4Addr::LOCALHOST);
        RequestDetails::new(method, &Uri::from_static("/a?b"), &headers, client, "1")
    }

    fn exact() -> CorsSettings {
        cors(&[AllowedOrigin::Exact("https://app.example".into())], true)
    }

    fn written(cors: &CorsSettings, origin: &'static str) -> HeaderMap {
        let mut headers = Headers::default();
        cors.write(&request(&Method::GET, &[("origin", origin)]), &mut headers);
        headers.into_map()
    }

    #[test]
    fn only_allowed_origins_may_read_a_reply() {
        let headers = written(&exact(), "https://app.example");
        assert_eq!(headers["access-control-allow-origin"], "https://app.example");
        assert_eq!(headers["access-control-allow-credentials"], "true");
        assert_eq!(headers["access-control-expose-headers"], "retry-after");
        assert_eq!(headers["vary"], "origin");
        for other in ["https://evil.example", "http://app.example", "https://app.example.evil", "null"] {
            let headers = written(&exact(), other);
            assert!(!headers.contains_key("access-control-allow-origin"), "{other}");
            assert_eq!(headers["vary"], "origin");
        }
    }

    #[test]
    fn subdomains_are_hosts_below_the_domain() {
        let allowed = AllowedOrigin::Subdomains { scheme: "https://".into(), domain: ".example.com".into() };
        for (origin, is_allowed) in [
            ("https://a.example.com", true),
            ("https://a.b.example.com", true),
            ("https://example.com", false),
            ("https://.example.com", false),
            ("http://a.example.com", false),
            ("https://evil.com/a.example.com", false),
            ("https://evil.com:1@a.example.com", false),
            ("https://aexample.com", false),
        ] {
            assert_eq!(allowed.allows(origin), is_allowed, "{origin}");
        }
    }

    #[test]
    fn wildcard_without_credentials_is_the_same_for_all() {
        let headers = written(&cors(&[AllowedOrigin::Any], false), "https://a.example");
        assert_eq!(headers["access-control-allow-origin"], "*");
        assert!(!headers.contains_key("vary"));
    }

    #[test]
    fn headers_of_a_stored_response_are_replaced() {
        let mut headers = Headers::default();
        headers.set(&ACCESS_CONTROL_ALLOW_ORIGIN, &HeaderValue::from_static("https://other.example"));
        headers.set(&VARY, &HeaderValue::from_static("accept, Origin"));
        exact().write(&request(&Method::GET, &[]), &mut headers);
        let headers = headers.into_map();
        assert!(!headers.contains_key("access-control-allow-origin"));
        assert_eq!(headers.get_all("vary").iter().count(), 1);
    }

    #[test]
    fn preflights_of_allowed_origins_are_answered() {
        let asked = [
            ("origin", "https://app.example"),
            ("access-control-request-method", "PUT"),
            ("access-control-request-headers", "content-type,x-api-key"),
        ];
        let headers = exact().preflight_headers(&request(&Method::OPTIONS, &asked)).unwrap().into_map();
        assert_eq!(headers["access-control-allow-origin"], "https://app.example");
        assert_eq!(headers["access-control-allow-methods"], "PUT");
        assert_eq!(headers["access-control-allow-headers"], "content-type,x-api-key");
        assert_eq!(headers["access-control-max-age"], "0");
        assert!(exact().preflight_headers(&request(&Method::GET, &asked)).is_none());
        assert!(exact().preflight_headers(&request(&Method::OPTIONS, &asked[..1])).is_none());
        let other = [("origin", "https://evil.example"), asked[1]];
        assert!(exact().preflight_headers(&request(&Method::OPTIONS, &other)).is_none());
    }
}

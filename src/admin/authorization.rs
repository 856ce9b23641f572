//! Who may use an endpoint: the bearer token, and requests of browsers.
//!
//! With a token, every request to the full interface needs it, except for the page itself, which has no data and asks for
//! the token. Without one, the interface is meant for loopback: commands
//! of other hosts are rejected, and so are commands on limits if the interface is at any other address. A web page of
//! another origin can never send a command: browsers send `Origin`, and only the page that this port serves may change
//! limits.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{AUTHORIZATION, HOST, ORIGIN, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};

use super::AdminState;
use super::response::{self, FullResponse};
use weir_config::AdminToken;

/// Header that the page sends with its requests. A page of another origin could send it only after a preflight, which is
/// never granted.
const X_WEIR_ADMIN: HeaderName = HeaderName::from_static("x-weir-admin");

/// Prefix of the paths of commands on limits.
const LIMITS_PREFIX: &str = "/limits/";

const LIMITS_NEED_TOKEN: &str = "forbidden: without a token, limits are changed only through an admin port on loopback. \
     Set admin.token, or use an address on loopback.\n";
const COMMANDS_NEED_TOKEN: &str = "forbidden: without a token, commands are accepted only from this host. \
     Set admin.token, or send them through loopback (kubectl port-forward, ssh -L).\n";
const BROWSER_REJECTED: &str =
    "requests of browsers, with an Origin header or from a page of another site, are rejected\n";
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const HOST_REJECTED: &str = "Host not allowed: not an IP address, not localhost, not listed in admin.hosts \
     (protection against DNS rebinding). Use an IP address, or add the name to admin.hosts.\n";
const UNAUTHORIZED: &str = "unauthorized: the token of admin.token is required. \
     Send it as `authorization: Bearer TOKEN`; `weir top` and `weir explain` read it with --token-file FILE.\n";

/// Why a request is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AdminRejection {
    /// The token is missing or wrong.
    Token,
    /// Without a token, limits are changed on loopback only.
    LimitsNeedToken,
    /// Without a token, commands are accepted from this host only.
    CommandsNeedToken,
    /// It comes from a web page of another origin.
    Browser,
    /// Its `Host` is not accepted.
    Host,
}

impl AdminRejection {
    /// Returns the name used in the audit log.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Token => "missing or wrong token",
            Self::LimitsNeedToken | Self::CommandsNeedToken => "no token configured, and not on loopback",
            Self::Browser => "web page of another origin",
            Self::Host => "host not allowed",
        }
    }

    pub(super) fn response_to<B>(self, request: &Request<B>) -> FullResponse {
        match self {
            Self::Token => unauthorized(request.headers()),
            Self::LimitsNeedToken => response::text(StatusCode::FORBIDDEN, LIMITS_NEED_TOKEN),
            Self::CommandsNeedToken => response::text(StatusCode::FORBIDDEN, COMMANDS_NEED_TOKEN),
            Self::Browser => response::text(StatusCode::FORBIDDEN, BROWSER_REJECTED),
            Self::Host => response::text(StatusCode::FORBIDDEN, HOST_REJECTED),
        }
    }
}

/// Checks the token of a request; every request passes if none is configured.
///
/// # Errors
/// [`AdminRejection::Token`] if the token is missing or wrong.
pub(super) fn check_token<B>(request: &Request<B>, token: Option<&AdminToken>) -> Result<(), AdminRejection> {
    let Some(token) = token else { return Ok(()) };
    let mut given = request.headers().get_all(AUTHORIZATION).iter();
    match (given.next(), given.next()) {
        (Some(value), None) if is_authorized(value.as_bytes(), token) => Ok(()),
        _ => Err(AdminRejection::Token),
    }
}

/// Checks whether a command may be sent in this way: from this address, and by a program or by the page.
///
/// # Errors
/// The reason why the command is rejected.
pub(super) fn check_command<B>(
    request: &Request<B>,
    state: &AdminState,
    peer: Option<SocketAddr>,
) -> Result<(), AdminRejection> {
    let changes_limits = request.uri().path().starts_with(LIMITS_PREFIX);
    if !state.access.is_loopback.load(Ordering::Relaxed) && state.access.token.load().is_none() {
        if changes_limits {
            return Err(AdminRejection::LimitsNeedToken);
        }
        if !peer.is_some_and(|peer| peer.ip().to_canonical().is_loopback()) {
            return Err(AdminRejection::CommandsNeedToken);
        }
    }
    // Browsers do not send Origin with every POST: a page may have them omit it.
    let is_of_browser = request.headers().contains_key(ORIGIN) || !is_own_site(request);
    if !is_of_browser || (changes_limits && is_own_site(request) && is_same_origin(request)) {
        return Ok(());
    }
    Err(AdminRejection::Browser)
}

/// Whether `value` of `authorization` has the token: as `Bearer`, or as the password of `Basic`, which browsers send.
fn is_authorized(value: &[u8], token: &AdminToken) -> bool {
    let Some(space) = value.iter().position(|byte| *byte == b' ') else { return false };
    let (scheme, credentials) = (&value[..space], value[space..].trim_ascii());
    if scheme.eq_ignore_ascii_case(b"bearer") {
        return token.matches(credentials);
    }
    let Some(pair) = STANDARD.decode(credentials).ok().filter(|_| scheme.eq_ignore_ascii_case(b"basic"))
    else {
        return false;
    };
    let colon = pair.iter().position(|byte| *byte == b':');
    colon.is_some_and(|colon| token.matches(&pair[colon + 1..]))
}

/// Whether the request comes from a program, a page of this port, or the user, and not from a page of another origin (Fetch
/// Metadata). Programs do not send the header.
pub(super) fn is_own_site<B>(request: &Request<B>) -> bool {
    let is_own = |site: &HeaderValue| [&b"same-origin"[..], b"none"].contains(&site.as_bytes());
    request.headers().get_all(&SEC_FETCH_SITE).iter().all(is_own)
}

/// Whether the request comes from a page of this port, with the header that only such a page can send.
fn is_same_origin<B>(request: &Request<B>) -> bool {
    let single = |name: &HeaderName| {
        let mut values = request.headers().get_all(name).iter();
        values.next().filter(|_| values.next().is_none()).map(HeaderValue::as_bytes)
    };
    let (Some(origin), Some(host), Some(b"1")) = (single(&ORIGIN), single(&HOST), single(&X_WEIR_ADMIN))
    else {
        return false;
    };
    let origin_host = origin.strip_prefix(b"http://").or_else(|| origin.strip_prefix(b"https://"));
    origin_host.is_some_and(|origin| !origin.is_empty() && origin.eq_ignore_ascii_case(host))
}

/// Returns `401` with a challenge per header line, because browsers read only the first one of a line.
fn unauthorized(request: &HeaderMap) -> FullResponse {
    let mut response = response::text(StatusCode::UNAUTHORIZED, UNAUTHORIZED);
    // RFC 6750 section 3.1: the error is absent if the request had no token.
    let bearer = match request.contains_key(AUTHORIZATION) {
        true => HeaderValue::from_static("Bearer realm=\"weir\", error=\"invalid_token\""),
        false => HeaderValue::from_static("Bearer realm=\"weir\""),
    };
    response.headers_mut().append(WWW_AUTHENTICATE, bearer);
    // The page has a field for the token. For this challenge, browsers would open a dialog of their own above it.
    if !request.contains_key(X_WEIR_ADMIN) {
        let basic = HeaderValue::from_static("Basic realm=\"weir\", charset=\"UTF-8\"");
        response.headers_mut().append(WWW_AUTHENTICATE, basic);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    fn is_accepted(values: &[&str]) -> bool {
        let token = AdminToken::new(TOKEN).unwrap();
        let request =
            values.iter().fold(Request::builder(), |request, value| request.header(AUTHORIZATION, *value));
        check_token(&request.body(()).unwrap(), Some(&token)).is_ok()
    }

    #[test]
    fn token_is_accepted_as_bearer_and_as_basic_password() {
        let basic = |pair: &str| format!("Basic {}", STANDARD.encode(pair));
        for value in ["Bearer 0123456789abcdef", "bearer  0123456789abcdef", &basic("admin:0123456789abcdef")]
        {
            assert!(is_accepted(&[value]), "{value}");
        }
        for values in [
            &[][..],
            &["0123456789abcdef"],
            &["Bearer 0123456789abcdeg"],
            &["Bearer"],
            &["Basic 0123456789abcdef"],
            &["Digest 0123456789abcdef"],
            &[&basic("0123456789abcdef")],
            &[&basic("0123456789abcdef:")],
            &["Bearer 0123456789abcdef", "Bearer 0123456789abcdef"],
        ] {
            assert!(!is_accepted(values), "{values:?}");
        }
    }

    #[test]
    fn each_challenge_has_a_line_of_its_own_and_the_page_gets_no_dialog() {
        let challenges = |headers: &[(HeaderName, &'static str)]| {
            let pairs = headers.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value)));
            let response = unauthorized(&pairs.collect());
            let values = response.headers().get_all(WWW_AUTHENTICATE).iter();
            values.map(|value| value.to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let (bearer, basic) = (r#"Bearer realm="weir""#, r#"Basic realm="weir", charset="UTF-8""#);
        assert_eq!(challenges(&[]), [bearer, basic]);
        let invalid = r#"Bearer realm="weir", error="invalid_token""#;
        assert_eq!(challenges(&[(AUTHORIZATION, "Bearer other")]), [invalid, basic]);
        assert_eq!(challenges(&[(X_WEIR_ADMIN, "1")]), [bearer]);
    }

    #[test]
    fn only_the_page_of_this_port_is_of_the_same_origin() {
        let is_same = |origin: &str, host: &str, own: Option<&str>| {
            let request = Request::builder().header(ORIGIN, origin).header(HOST, host);
            let request = own.into_iter().fold(request, |request, own| request.header(X_WEIR_ADMIN, own));
            is_same_origin(&request.body(()).unwrap())
        };
        assert!(is_same("http://127.0.0.1:9901", "127.0.0.1:9901", Some("1")));
        assert!(is_same("https://Weir.internal", "weir.internal", Some("1")));
        for (origin, host, own) in [
            ("http://127.0.0.1:9901", "127.0.0.1:9901", None),
            ("http://127.0.0.1:9901", "127.0.0.1:9901", Some("0")),
            ("http://evil.example", "127.0.0.1:9901", Some("1")),
            ("http://127.0.0.1:9902", "127.0.0.1:9901", Some("1")),
            ("null", "127.0.0.1:9901", Some("1")),
            ("127.0.0.1:9901", "127.0.0.1:9901", Some("1")),
            ("http://", "", Some("1")),
        ] {
            assert!(!is_same(origin, host, own), "{origin} {host}");
        }
    }
}

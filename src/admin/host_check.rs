//! Checks the `Host` header of admin requests against DNS rebinding.
//!
//! With DNS rebinding, a web page makes its own name resolve to the address of the admin port. The browser then treats
//! the responses as same-origin, and the page may read them. The page's name in `Host` reveals this. An IP address
//! cannot be rebound, and `localhost` never leaves the machine (RFC 6761 §6.3).

use std::net::{IpAddr, Ipv6Addr};

use http::header::HOST;
use http::uri::Authority;
use http::{HeaderValue, Request};

/// Returns whether every host of the request is an IP address, `localhost`, or in `allowed_hosts`. A request
/// without a host passes, because browsers always send one.
pub(super) fn are_hosts_allowed<B>(request: &Request<B>, allowed_hosts: &[Box<str>]) -> bool {
    let is_header_allowed = |field: &HeaderValue| {
        let authority = field.to_str().ok().and_then(|text| text.parse::<Authority>().ok());
        authority.is_some_and(|authority| is_host_allowed(&authority, allowed_hosts))
    };
    request.headers().get_all(HOST).iter().all(is_header_allowed)
        && request.uri().authority().is_none_or(|authority| is_host_allowed(authority, allowed_hosts))
}

fn is_host_allowed(authority: &Authority, allowed_hosts: &[Box<str>]) -> bool {
    let host = authority.host();
    // Without user information, and with nothing behind the host but a port.
    let Some(rest) = authority.as_str().strip_prefix(host) else { return false };
    if !rest.is_empty() && rest.strip_prefix(':').is_none_or(|port| !is_port(port)) {
        return false;
    }
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    if bracketed.map_or_else(|| host.parse::<IpAddr>().is_ok(), |host| host.parse::<Ipv6Addr>().is_ok()) {
        return true;
    }
    let name = host.strip_suffix('.').unwrap_or(host);
    name.eq_ignore_ascii_case("localhost")
        || allowed_hosts.iter().any(|allowed| name.eq_ignore_ascii_case(allowed))
}

/// Whether the text is a port. It may be empty (RFC 3986 section 3.2.3).
fn is_port(text: &str) -> bool {
    text.is_empty() || (text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_allowed(host: &str) -> bool {
        let request = Request::builder().uri("/").header(HOST, host).body(()).unwrap();
        are_hosts_allowed(&request, &["weir.internal".into()])
    }

    #[test]
    fn host_check_allows_addresses_localhost_and_configured_names() {
        for host in [
            "127.0.0.1",
            "127.0.0.1:9901",
            "10.1.2.3:80",
            "[::1]",
            "[::1]:9901",
            "localhost",
            "LOCALHOST:9901",
            "localhost:",
            "localhost.",
            "weir.internal",
            "Weir.Internal.:9901",
        ] {
            assert!(is_allowed(host), "{host}");
        }
    }

    #[test]
    fn host_check_rejects_other_names_in_any_spelling() {
        for host in [
            "evil.example",
            "evil.example:9901",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "xlocalhost",
            "127.0.0.1@evil.example",
            "evil.example@127.0.0.1",
            "weir.internal.evil.example",
            "[evil.example]",
            "",
            "2130706433",
            "0x7f.1",
            "a b",
            "localhost:x",
            "localhost:99999",
            "localhost:+80",
            "127.0.0.1:x",
            "[::1]:x",
            "weir.internal:1x",
        ] {
            assert!(!is_allowed(host), "{host}");
        }
    }

    #[test]
    fn host_check_covers_every_host_of_a_request() {
        let request = Request::builder().uri("/").header(HOST, "localhost").header(HOST, "evil.example");
        assert!(!are_hosts_allowed(&request.body(()).unwrap(), &[]));
        let request = Request::builder().uri("http://evil.example/").header(HOST, "localhost");
        assert!(!are_hosts_allowed(&request.body(()).unwrap(), &[]));
        assert!(
            are_hosts_allowed(&Request::builder().uri("/").body(()).unwrap(), &[]),
            "HTTP/1.0 has no `Host`"
        );
    }
}

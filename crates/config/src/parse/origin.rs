//! Origins of pages (RFC 6454, section 6.2).

use crate::diagnostic::ValueError;
use crate::quoting::quoted;
use weir_policy::response::cors::AllowedOrigin;

/// Parses an origin such as `https://app.example`, `https://*.example.com` or `*`.
///
/// # Errors
/// Returns a [`ValueError`] that describes what browsers send.
pub fn origin(text: &str) -> Result<AllowedOrigin, ValueError> {
    if text == "*" {
        return Ok(AllowedOrigin::Any);
    }
    let error =
        || ValueError::new(format!("expected an origin such as `https://app.example`, got {}", quoted(text)));
    if text.eq_ignore_ascii_case("null") {
        return Err(error().with_hint("every page can have the origin `null`, in a sandboxed frame; use `*`"));
    }
    let Some((scheme, rest)) = text.split_once("://") else {
        let is_host = !text.is_empty() && text.bytes().all(|byte| is_host_byte(byte) || byte == b':');
        return Err(match is_host {
            true => error().with_hint(format!("write `https://{text}`")),
            false => error(),
        });
    };
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    if !is_scheme || authority.is_empty() || !is_authority(authority) {
        return Err(error());
    }
    let given = format!("{scheme}://{authority}").to_ascii_lowercase();
    let browsers = without_default_port(&given);
    if !path.is_empty() || browsers != text {
        return Err(error().with_hint(format!("browsers send `{browsers}`")));
    }
    Ok(match authority.strip_prefix('*') {
        Some(domain) => {
            AllowedOrigin::Subdomains { scheme: format!("{scheme}://").into(), domain: domain.into() }
        }
        None => AllowedOrigin::Exact(text.into()),
    })
}

fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b".-_".contains(&byte)
}

/// Whether the text is a host with an optional port; `*.` may stand for a part of the host.
fn is_authority(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[') {
        Some(address) => match address.split_once(']') {
            Some((address, port)) if address.parse::<std::net::Ipv6Addr>().is_ok() => ("", port),
            _ => return false,
        },
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let name = host.strip_prefix("*.").unwrap_or(host);
    let is_name = text.starts_with('[') || (!name.is_empty() && name.bytes().all(is_host_byte));
    let is_port = |port: &str| port.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
    is_name && (port.is_empty() || is_port(port))
}

/// Removes the port of the scheme, which browsers leave out.
fn without_default_port(origin: &str) -> &str {
    let default = match origin.split_once("://") {
        Some(("https", _)) => ":443",
        Some(("http", _)) => ":80",
        _ => return origin,
    };
    origin.strip_suffix(default).unwrap_or(origin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_parsed_as_browsers_write_them() {
        for exact in
            ["https://app.example", "http://localhost:3000", "http://[::1]:3000", "app+x://localhost"]
        {
            assert_eq!(origin(exact), Ok(AllowedOrigin::Exact(exact.into())));
        }
        assert_eq!(origin("*"), Ok(AllowedOrigin::Any));
        let below =
            AllowedOrigin::Subdomains { scheme: "https://".into(), domain: ".example.com:8443".into() };
        assert_eq!(origin("https://*.example.com:8443"), Ok(below));
    }

    #[test]
    fn other_notations_of_origins_have_hints() {
        for (text, hint) in [
            ("app.example", "write `https://app.example`"),
            ("localhost:3000", "write `https://localhost:3000`"),
            ("https://app.example/", "browsers send `https://app.example`"),
            ("https://app.example/a?b", "browsers send `https://app.example`"),
            ("https://App.Example", "browsers send `https://app.example`"),
            ("https://app.example:443", "browsers send `https://app.example`"),
        ] {
            assert_eq!(origin(text).unwrap_err().hint.as_deref(), Some(hint), "{text}");
        }
        assert!(origin("null").unwrap_err().hint.is_some_and(|hint| hint.contains("sandboxed")));
        for text in
            ["", "https://", "https://a b", "https://a.*.b", "https://user@a", "1://a", "https://a:x", "*.a"]
        {
            assert!(origin(text).is_err(), "{text}");
        }
    }
}

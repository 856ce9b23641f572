//! Protocols that a connection may be upgraded to (RFC 9110 section 7.8).

use crate::diagnostic::ValueError;
use crate::quoting::quoted;

/// Protocols that carry requests, which would pass through the tunnel without being checked.
const HTTP_PROTOCOLS: [&str; 3] = ["h2", "h2c", "http"];

/// Parses a protocol, e.g. `websocket` or `spdy/3.1`, into lower case.
///
/// # Errors
/// Returns a [`ValueError`] if it is not the name of a protocol, or is HTTP or TLS.
pub fn upgrade_protocol(text: &str) -> Result<Box<str>, ValueError> {
    let lower = text.to_ascii_lowercase();
    let (name, version) = lower.split_once('/').unwrap_or((&lower, "1"));
    if !is_token(name) || !is_token(version) {
        let error = ValueError::new(format!("expected a protocol such as `websocket`, got {}", quoted(text)));
        return Err(error);
    }
    if HTTP_PROTOCOLS.contains(&name) || name == "tls" {
        let error =
            ValueError::new(format!("upgrades to HTTP and TLS are not supported, got {}", quoted(text)));
        return Err(error.with_hint("rules cannot see the requests in such a connection"));
    }
    Ok(lower.into())
}

fn is_token(text: &str) -> bool {
    let is_of_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_of_token)
}

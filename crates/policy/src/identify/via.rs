//! Name of this hop in `Via` (RFC 9110 section 7.6.3).

use http::{HeaderValue, Version};

/// Values of `Via` for messages that arrive in HTTP/1.0, HTTP/1.1 and HTTP/2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Via([HeaderValue; 3]);

impl Via {
    /// Name unless another one is configured.
    pub const DEFAULT_NAME: &str = "weir";

    /// Creates the values for a hop of this name; `None` unless the name is a token.
    pub fn new(name: &str) -> Option<Self> {
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_token) {
            return None;
        }
        let value = |version| HeaderValue::try_from(format!("{version} {name}")).ok();
        Some(Self([value("1.0")?, value("1.1")?, value("2")?]))
    }

    /// Returns the value for a message that was received in this version.
    pub fn value(&self, version: Version) -> &HeaderValue {
        let [http10, http11, http2] = &self.0;
        match version {
            Version::HTTP_10 => http10,
            Version::HTTP_2 => http2,
            _ => http11,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_has_the_version_of_the_received_message() {
        let via = Via::new("edge-1").unwrap();
        let versions = [Version::HTTP_10, Version::HTTP_11, Version::HTTP_2];
        assert_eq!(
            versions.map(|version| via.value(version).clone()),
            ["1.0 edge-1", "1.1 edge-1", "2 edge-1"]
        );
    }

    #[test]
    fn name_is_a_token() {
        for name in ["", "a b", "a,b", "a/b", "(a)", "\u{e9}"] {
            assert_eq!(Via::new(name), None, "{name}");
        }
    }
}

//! The addresses on which a server listens.

/// The port of a `listen` without one.
const DEFAULT_PORT: &str = "80";

/// An address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listen {
    /// `address:port`, with `*` for all addresses, or `unix:path`.
    pub(super) address: String,
    /// Whether its server gets the requests for hosts that no server of the address has.
    pub(super) is_default: bool,
}

impl Listen {
    /// Reads the parameters of `listen`; without any, the address that nginx uses.
    pub(super) fn parse(arguments: &[String]) -> Self {
        let text = arguments.first().map_or(DEFAULT_PORT, String::as_str);
        let is_port = text.bytes().all(|byte| byte.is_ascii_digit());
        // The colons of an IPv6 address are in brackets.
        let has_port = text.rsplit(']').next().is_some_and(|rest| rest.contains(':'));
        let address = match (is_port, has_port) {
            (true, _) => format!("*:{text}"),
            (false, true) => text.to_ascii_lowercase(),
            (false, false) => format!("{}:{DEFAULT_PORT}", text.to_ascii_lowercase()),
        };
        let is_default =
            arguments.iter().skip(1).any(|word| matches!(word.as_str(), "default_server" | "default"));
        Self { address, is_default }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nginx_listen_parameters_become_addresses() {
        for (text, expected) in [
            ("8080", "*:8080"),
            ("*:80", "*:80"),
            ("127.0.0.1", "127.0.0.1:80"),
            ("LocalHost:8080", "localhost:8080"),
            ("[::]:443", "[::]:443"),
            ("[::1]", "[::1]:80"),
            ("unix:/run/a", "unix:/run/a"),
        ] {
            assert_eq!(Listen::parse(&[text.to_owned()]).address, expected, "{text}");
        }
        assert_eq!(Listen::parse(&[]).address, "*:80");
        let words = ["80", "ssl", "default_server"].map(ToOwned::to_owned);
        assert!(Listen::parse(&words).is_default);
    }
}

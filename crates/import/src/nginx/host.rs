//! The patterns of `server_name`, and which of them applies to a host.
//!
//! An exact name applies first, then the longest name that begins with `*`, the longest that ends with it, the
//! first regex, and then the default server.

use regex::Regex;

use super::super::pattern::parse_regex;
use super::precedence::Competing;

#[derive(Clone, Debug)]
pub(super) enum ServerName {
    Exact(String),
    /// `*.example.com`, here with the dot and without the star.
    Suffix(String),
    /// `www.*`, here with the dot and without the star.
    Prefix(String),
    /// `~regex`, with its index in the configuration.
    Regex {
        regex: Regex,
        order: usize,
    },
    /// All hosts that no other server has.
    Default,
}

impl ServerName {
    /// Reads a parameter of `server_name`, which may stand for two names. `None` for a regex that rules do not
    /// support.
    pub(super) fn parse(text: &str, order: usize) -> Option<Vec<Self>> {
        if let Some(regex) = text.strip_prefix('~') {
            // nginx compares such a regex without regard to case if it has capitals.
            return Some(vec![Self::Regex {
                regex: parse_regex(regex, regex.contains(char::is_uppercase))?,
                order,
            }]);
        }
        let text = text.to_ascii_lowercase();
        Some(match text.as_str() {
            text if text.starts_with('.') && is_host_name(&text[1..]) => {
                vec![Self::Exact(text[1..].to_owned()), Self::Suffix(text.to_owned())]
            }
            text if text.starts_with("*.") && is_host_name(&text[2..]) => {
                vec![Self::Suffix(text[1..].to_owned())]
            }
            text if text.ends_with(".*") && is_host_name(&text[..text.len() - 2]) => {
                vec![Self::Prefix(text[..text.len() - 1].to_owned())]
            }
            text if is_host_name(text) => vec![Self::Exact(text.to_owned())],
            // No host has a name such as `_`, which is the usual way to have none.
            _ => Vec::new(),
        })
    }

    /// Returns the pattern of a rule's `match.host`; `None` for all hosts.
    pub(super) fn to_rule_pattern(&self) -> Option<String> {
        match self {
            Self::Exact(name) => Some(name.clone()),
            Self::Suffix(suffix) => Some(format!("*{suffix}")),
            Self::Prefix(prefix) => Some(format!("~^{}.", regex::escape(prefix))),
            Self::Regex { regex, .. } => Some(format!("~{}", regex.as_str())),
            Self::Default => None,
        }
    }

    fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Exact(one), Self::Exact(other)) => one == other,
            (Self::Exact(name), Self::Suffix(suffix)) | (Self::Suffix(suffix), Self::Exact(name)) => {
                name.ends_with(suffix.as_str())
            }
            (Self::Exact(name), Self::Prefix(prefix)) | (Self::Prefix(prefix), Self::Exact(name)) => {
                name.starts_with(prefix.as_str())
            }
            (Self::Exact(name), Self::Regex { regex, .. })
            | (Self::Regex { regex, .. }, Self::Exact(name)) => regex.is_match(name),
            (Self::Suffix(one), Self::Suffix(other)) => one.ends_with(other) || other.ends_with(one),
            (Self::Prefix(one), Self::Prefix(other)) => one.starts_with(other) || other.starts_with(one),
            _ => true,
        }
    }

    /// Returns the position in the order of precedence; of two, the lower one applies.
    pub(super) fn rank(&self) -> (u8, usize) {
        match self {
            Self::Exact(_) => (0, 0),
            Self::Suffix(text) => (1, usize::MAX - text.len()),
            Self::Prefix(text) => (2, usize::MAX - text.len()),
            Self::Regex { order, .. } => (3, *order),
            Self::Default => (4, 0),
        }
    }
}

impl Competing for ServerName {
    fn precedes(&self, other: &Self) -> bool {
        self.rank() < other.rank() && self.overlaps(other)
    }
}

/// Whether a host may have this name.
pub(super) fn is_host_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    text.bytes().all(is_plain)
        && text.split('.').all(|label| label.bytes().any(|byte| byte.is_ascii_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> ServerName {
        ServerName::parse(text, 0).unwrap().remove(0)
    }

    #[test]
    fn nginx_server_names_become_host_patterns() {
        let patterns = |text: &str| -> Vec<Option<String>> {
            ServerName::parse(text, 0).unwrap().iter().map(ServerName::to_rule_pattern).collect()
        };
        let expected =
            |texts: &[&str]| -> Vec<_> { texts.iter().map(|text| Some((*text).to_owned())).collect() };
        assert_eq!(patterns("API.example.com"), expected(&["api.example.com"]));
        assert_eq!(patterns(".example.com"), expected(&["example.com", "*.example.com"]));
        assert_eq!(patterns("*.example.com"), expected(&["*.example.com"]));
        assert_eq!(patterns("www.*"), expected(&["~^www\\.."]));
        assert_eq!(patterns("~^www\\d+\\."), expected(&["~^www\\d+\\."]));
        assert_eq!((patterns("_"), patterns("")), (vec![], vec![]));
        assert!(ServerName::parse("~(?=a)", 0).is_none());
    }

    #[test]
    fn nginx_server_name_precedence_is_exact_suffix_prefix_regex_default() {
        let regex = ServerName::parse("~a", 1).unwrap().remove(0);
        let all =
            [name("www.a.com"), name("*.a.com"), name("*.com"), name("www.*"), regex, ServerName::Default];
        for (index, one) in all.iter().enumerate() {
            for (other_index, other) in all.iter().enumerate() {
                assert_eq!(one.precedes(other), index < other_index, "{one:?} {other:?}");
            }
        }
        assert!(!name("a.com").precedes(&name("*.a.com")), "the wildcard does not match the domain itself");
    }
}

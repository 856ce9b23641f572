//! Query string of an admin request. As in Envoy, parameters are in the query and not in the body.

use std::borrow::Cow;
use std::net::SocketAddr;

use percent_encoding::percent_decode_str;

/// Parameters of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Query<'a> {
    /// Query string, undecoded.
    pub(super) text: &'a str,
    /// Path of the request.
    pub(super) path: &'static str,
    /// Address from which the request came, if it is known.
    pub(super) peer: Option<SocketAddr>,
}

impl<'a> Query<'a> {
    /// Returns the decoded names and values, as in a form: `+` is a space. The value is empty if there is no `=`.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (Cow<'a, str>, Cow<'a, str>)> + use<'a> {
        self.raw_pairs().map(|(name, value)| (form_decoded(name), form_decoded(value)))
    }

    fn raw_pairs(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        let pairs = self.text.split('&').filter(|pair| !pair.is_empty());
        pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")))
    }

    /// Returns the first value of the parameter `name`.
    pub(super) fn get(&self, name: &str) -> Option<Cow<'a, str>> {
        self.pairs().find_map(|(key, value)| (key == name).then_some(value))
    }

    /// Returns the first value of the parameter `name`, in which `+` is itself, as in a regex.
    pub(super) fn get_with_plus(&self, name: &str) -> Option<Cow<'a, str>> {
        let mut values = self.raw_pairs().filter(|(key, _)| form_decoded(key) == name);
        values.next().map(|(_, value)| percent_decode_str(value).decode_utf8_lossy())
    }

    /// Returns the address from which the request came, for logs.
    pub(super) fn peer_text(&self) -> String {
        self.peer.map_or_else(|| "-".to_owned(), |peer| peer.to_string())
    }

    /// Returns whether the client requests JSON (`format=json`, as in Envoy).
    pub(super) fn is_json_requested(&self) -> bool {
        self.get("format").as_deref() == Some("json")
    }
}

fn form_decoded(text: &str) -> Cow<'_, str> {
    if !text.contains('+') {
        return percent_decode_str(text).decode_utf8_lossy();
    }
    let spaced = text.replace('+', " ");
    Cow::Owned(percent_decode_str(&spaced).decode_utf8_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plus_is_a_space_except_in_a_regex() {
        let query = Query { text: "key=a%2Bb,+c+d&filter=a.+b%20c", path: "/", peer: None };
        assert_eq!(query.get("key").as_deref(), Some("a+b, c d"));
        assert_eq!(query.get_with_plus("filter").as_deref(), Some("a.+b c"));
    }
}

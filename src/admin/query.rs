//! Query string of an admin request. As in Envoy, parameters are in the query and not in the body.

use std::borrow::Cow;
use std::net::SocketAddr;

use percent_encoding::percent_decode_str;

/// Parameters of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Query<'a> {
    /// Query string, undecoded.
    pub(super) text: &'a str,
    /// Address from which the request came, if it is known.
    pub(super) peer: Option<SocketAddr>,
}

impl<'a> Query<'a> {
    /// Returns the percent-decoded names and values; the value is empty if there is no `=`.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (Cow<'a, str>, Cow<'a, str>)> + use<'a> {
        self.text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let decode = |text| percent_decode_str(text).decode_utf8_lossy();
            (decode(name), decode(value))
        })
    }

    /// Returns the first value of the parameter `name`.
    pub(super) fn get(&self, name: &str) -> Option<Cow<'a, str>> {
        self.pairs().find_map(|(key, value)| (key == name).then_some(value))
    }

    /// Returns whether the client wants JSON (`format=json`, as in Envoy).
    pub(super) fn is_json_requested(&self) -> bool {
        self.get("format").as_deref() == Some("json")
    }
}

//! The query of an admin request; parameters are there and not in a body, as with Envoy.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

/// The parameters of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Query<'a>(pub(super) &'a str);

impl<'a> Query<'a> {
    /// Names and values, decoded; the value is empty where there is no `=`.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (Cow<'a, str>, Cow<'a, str>)> + use<'a> {
        self.0.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let decode = |text| percent_decode_str(text).decode_utf8_lossy();
            (decode(name), decode(value))
        })
    }

    /// The first value of this name.
    pub(super) fn get(&self, name: &str) -> Option<Cow<'a, str>> {
        self.pairs().find_map(|(given, value)| (given == name).then_some(value))
    }

    /// Whether the response is to be JSON: `format=json`, as with Envoy.
    pub(super) fn wants_json(&self) -> bool {
        self.get("format").as_deref() == Some("json")
    }
}

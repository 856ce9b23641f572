//! Keys as operators may see them: with their values, with hashes in place of values, or not at all.
//!
//! Values of headers, cookies, query parameters and claims are often credentials, and logs are copied to many places.
//! So these are hashed unless the configuration asks for values. A hash is keyed with the secret of the limiter: equal
//! values have equal hashes in one process, and the value cannot be found by trying.

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::Deserialize;

use weir_limiter::key::KeyHasher;
use weir_policy::identify::Attributes;
use weir_policy::rules::attribute::Attribute;
use weir_policy::rules::key::KeyTemplate;
use weir_policy::rules::key_text::{LabeledKeyPart, write_key};
use weir_policy::rules::pattern::Route;
use weir_policy::rules::rule::Rule;
use weir_policy::rules::{RuleIndex, RuleSet};

/// Maximum length of a key as text, in bytes.
pub const MAX_TEXT_LENGTH: usize = 128;

/// Text of a key of which a part is missing. All such requests share one counter, or are rejected.
const INCOMPLETE: &str = "incomplete key";
/// Text of a key that is not shown.
const HIDDEN: &str = "hidden";

/// How keys are written to logs and to the admin port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum LogKeys {
    /// With all values.
    Value,
    /// With a hash in place of each value.
    Hash,
    /// Not at all.
    Off,
}

/// One entry of a descriptor, as part of a key.
#[derive(Clone, Copy, Debug)]
pub struct KeyEntry<'e> {
    pub key: &'e str,
    pub value: &'e str,
    /// Whether the configuration names the value.
    pub is_configured: bool,
}

/// Writes keys of requests as text.
#[derive(Clone, Copy, Debug)]
pub struct KeyWriter {
    /// What to show of a key. If `None`, values that may be credentials are hashed and others are shown.
    pub visibility: Option<LogKeys>,
    /// Prefix length of the IPv6 network that counts as one client.
    pub ipv6_prefix: u8,
    pub hasher: KeyHasher,
}

impl KeyWriter {
    /// Whether keys are shown at all.
    pub fn is_visible(&self) -> bool {
        self.visibility != Some(LogKeys::Off)
    }

    /// Returns the text for requests that lack a part of the key, or have several values for one.
    pub fn incomplete_key(&self) -> &'static str {
        if self.is_visible() { INCOMPLETE } else { HIDDEN }
    }

    /// Returns the key of `request` under the rule at `index`; `None` if that rule has no key.
    pub fn request_key(&self, rules: &RuleSet, index: RuleIndex, request: &Attributes<'_>) -> Option<String> {
        let rule = rules.get(index)?;
        let template = key_of(rule)?;
        if !self.is_visible() {
            return Some(HIDDEN.to_owned());
        }
        let route = rule.applies_to(request).route().unwrap_or(Route(""));
        Some(self.write(template, request, route))
    }

    fn write(&self, template: &KeyTemplate, request: &Attributes<'_>, route: Route<'_>) -> String {
        self.write_parts(template, template.parts(request, route, self.ipv6_prefix))
    }

    /// Returns a key of `template` with these parts, as text.
    pub fn write_parts(&self, template: &KeyTemplate, mut parts: Vec<LabeledKeyPart>) -> String {
        if !self.is_visible() {
            return HIDDEN.to_owned();
        }
        if parts.iter().any(|part| part.value.is_none()) {
            return INCOMPLETE.to_owned();
        }
        for (part, attribute) in parts.iter_mut().zip(&template.0) {
            self.hide(part, attribute.may_be_secret());
        }
        truncate(write_key(&parts))
    }

    /// Returns a key of descriptor entries as text. A value that the configuration names is no credential.
    pub fn write_entries<'e>(&self, entries: impl Iterator<Item = KeyEntry<'e>>) -> String {
        if !self.is_visible() {
            return HIDDEN.to_owned();
        }
        let part = |KeyEntry { key, value, is_configured }: KeyEntry<'_>| {
            let label = Attribute::Descriptor(key.into()).label();
            let mut part = LabeledKeyPart { label, value: Some(value.to_owned()) };
            self.hide(&mut part, !is_configured);
            part
        };
        truncate(write_key(&entries.map(part).collect::<Vec<_>>()))
    }

    /// Replaces the value of a part by its hash unless it may be shown.
    fn hide(&self, part: &mut LabeledKeyPart, may_be_secret: bool) {
        let is_shown = match self.visibility {
            Some(LogKeys::Value) => true,
            Some(LogKeys::Hash | LogKeys::Off) => false,
            None => !may_be_secret,
        };
        if let (false, Some(value)) = (is_shown, &mut part.value) {
            let id = self.hasher.opaque_id(self.hasher.hash(value.as_bytes()), &part.label);
            *value = format!("#{:016x}", u64::from_le_bytes(id));
        }
    }
}

/// Returns the key of a rule that counts several keys apart.
pub fn key_of(rule: &Rule) -> Option<&KeyTemplate> {
    Some(&rule.action.limiting()?.key).filter(|key| !key.0.is_empty())
}

/// Cuts a text to the maximum length, with an ellipsis at its end.
fn truncate(mut text: String) -> String {
    const ELLIPSIS: char = '…';
    if text.len() > MAX_TEXT_LENGTH {
        let longest = MAX_TEXT_LENGTH - ELLIPSIS.len_utf8();
        let end = (0..=longest).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or_default());
        text.push(ELLIPSIS);
    }
    text
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderName, Method, Uri};

    use super::*;
    use weir_limiter::timestamp::Timestamp;
    use weir_policy::identify::{IdentifySettings, identify};

    fn key(visibility: Option<LogKeys>, parts: &[Attribute], header: &str) -> String {
        let writer = KeyWriter { visibility, ipv6_prefix: 64, hasher: KeyHasher::new([1, 2]) };
        let headers = HeaderMap::from_iter([(HeaderName::from_static("x-key"), header.parse().unwrap())]);
        let (uri, settings) = (Uri::from_static("/a"), IdentifySettings::default());
        let peer = "203.0.113.7".parse().unwrap();
        let request = identify(&Method::GET, &uri, &headers, peer, &settings, Timestamp::EPOCH).unwrap();
        writer.write(&KeyTemplate(parts.into()), &request, Route(""))
    }

    fn both() -> [Attribute; 2] {
        [Attribute::ClientIp, Attribute::Header(HeaderName::from_static("x-key"))]
    }

    #[test]
    fn credentials_are_hashed_by_default() {
        let text = key(None, &both(), "s3cret");
        assert!(text.starts_with("client_ip=203.0.113.7, header.x-key=#"), "{text}");
        assert!(!text.contains("s3cret") && text == key(None, &both(), "s3cret"));
        assert_ne!(text, key(None, &both(), "other"));
    }

    #[test]
    fn log_keys_shows_or_hashes_all_values() {
        assert_eq!(
            key(Some(LogKeys::Value), &both(), "s3cret"),
            "client_ip=203.0.113.7, header.x-key=s3cret"
        );
        let text = key(Some(LogKeys::Hash), &both(), "s3cret");
        assert!(!text.contains("203.0.113.7") && !text.contains("s3cret"), "{text}");
    }

    #[test]
    fn long_keys_are_cut() {
        let text = key(Some(LogKeys::Value), &both()[1..], &"a".repeat(4096));
        assert!(text.len() <= MAX_TEXT_LENGTH && text.ends_with('…'), "{text}");
    }

    #[test]
    fn missing_part_makes_the_key_incomplete() {
        let parts = [Attribute::ClientIp, Attribute::Cookie("none".into())];
        assert_eq!(key(None, &parts, ""), "incomplete key");
    }
}

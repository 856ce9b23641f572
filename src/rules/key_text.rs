//! Keys as text, such as `client_ip=203.0.113.7, path=/login`: what operators read and write.
//!
//! Each part is the attribute's label and its value. A value that could be mistaken for something else is written as a
//! JSON string, so a client cannot choose a value that reads like the key of another. Reading is guided by the rule's
//! key, and an ambiguous text is an error.

use std::net::IpAddr;

use super::attribute::{Attribute, AttributeSource, IncompleteKey};
use super::key::{self, KeyTemplate};
use super::pattern::Route;
use crate::identify::geo::{Continent, Country};
use crate::identify::{Attributes, client_ip};
use crate::limiter::key::{KeyHash, KeyHasher};

/// Separator of the parts of a key.
const SEPARATOR: &str = ", ";

/// Why a text is not a key of a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyTextError {
    /// A part is missing, or not where it belongs.
    #[error("expected a key of the form `{0}`")]
    Form(String),
    /// A value is not one of its attribute.
    #[error("not a value of `{label}`: {value}")]
    Value {
        /// Label of the attribute.
        label: String,
        /// The value.
        value: String,
    },
    /// The text can be read as two different keys.
    #[error("ambiguous, because a value contains `, `: put the value in double quotes, or use `fingerprint`")]
    Ambiguous,
}

/// One part of a request's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabeledKeyPart {
    /// Label of the attribute, such as `client_ip` or `header.x-api-key`.
    pub label: String,
    /// The value; `None` if the request lacks it or it is ambiguous.
    pub value: Option<String>,
}

impl Attribute {
    /// Returns the label in a key as text: the keyword, with its parameter after a dot.
    pub fn label(&self) -> String {
        match self {
            Self::ClientIp
            | Self::ClientNetwork { .. }
            | Self::Country
            | Self::Continent
            | Self::System
            | Self::Plan(_)
            | Self::Route
            | Self::Path
            | Self::Method
            | Self::Host => self.word().to_owned(),
            Self::Header(_) | Self::Cookie(_) | Self::Query(_) | Self::Jwt(_) | Self::Certificate(_) => {
                format!("{}.{}", self.word(), self.entry_key())
            }
            Self::Descriptor(key) => format!("descriptor.{key}"),
        }
    }

    /// Whether its values may be credentials, which are not to be written to logs.
    pub fn may_be_secret(&self) -> bool {
        match self {
            Self::Header(_) | Self::Cookie(_) | Self::Query(_) | Self::Jwt(_) | Self::Descriptor(_) => true,
            Self::ClientIp
            | Self::ClientNetwork { .. }
            | Self::Country
            | Self::Continent
            | Self::System
            | Self::Plan(_)
            | Self::Route
            | Self::Path
            | Self::Method
            | Self::Host
            | Self::Certificate(_) => false,
        }
    }

    /// Returns the bytes that [`Self::read`] finds for a value that is written as `text`; `None` if it is not a value of
    /// this attribute.
    fn bytes_of(&self, text: &str, ipv6_prefix: u8) -> Option<Vec<u8>> {
        match self {
            Self::ClientIp | Self::ClientNetwork { .. } => match self.address_of(text, ipv6_prefix)? {
                IpAddr::V4(v4) => Some(v4.octets().into()),
                IpAddr::V6(v6) => Some(v6.octets().into()),
            },
            Self::Country => Some(text.parse::<Country>().ok()?.code().into()),
            Self::Continent => Some(text.parse::<Continent>().ok()?.code().into()),
            Self::System => {
                let number = text.strip_prefix("AS").unwrap_or(text).parse::<u32>().ok()?;
                Some(number.to_be_bytes().into())
            }
            Self::Plan(_)
            | Self::Route
            | Self::Path
            | Self::Method
            | Self::Host
            | Self::Header(_)
            | Self::Cookie(_)
            | Self::Query(_)
            | Self::Jwt(_)
            | Self::Certificate(_)
            | Self::Descriptor(_) => Some(text.as_bytes().into()),
        }
    }

    /// Returns the counted network of an address or network; `None` if it is neither.
    fn address_of(&self, text: &str, ipv6_prefix: u8) -> Option<IpAddr> {
        let AttributeSource::Client { ipv4, ipv6 } = self.source() else { return None };
        let address = text.split_once('/').map_or(text, |(address, _)| address);
        let ip = address.parse::<IpAddr>().ok()?.to_canonical();
        Some(client_ip::network(ip, ipv4.unwrap_or(32), ipv6.unwrap_or(ipv6_prefix)))
    }
}

impl KeyTemplate {
    /// Returns the parts of a request's key. IPv6 clients count as networks with this prefix length unless the key sets
    /// another.
    pub fn parts(&self, request: &Attributes<'_>, route: Route<'_>, ipv6_prefix: u8) -> Vec<LabeledKeyPart> {
        let part = |attribute: &Attribute| LabeledKeyPart {
            label: attribute.label(),
            value: attribute.text(request, route, ipv6_prefix).ok(),
        };
        self.0.iter().map(part).collect()
    }

    /// Returns the attribute without which a request has no key, and why it has none.
    pub fn missing_part(
        &self,
        request: &Attributes<'_>,
        route: Route<'_>,
    ) -> Option<(String, IncompleteKey)> {
        let failure = |part: &Attribute| {
            let reason = part.read(request, route, |_| ()).err()?;
            Some((part.label(), reason))
        };
        self.0.iter().find_map(failure)
    }

    /// Whether its values may be credentials, which are not to be written to logs.
    pub fn may_be_secret(&self) -> bool {
        self.0.iter().any(Attribute::may_be_secret)
    }

    /// Returns the key that `text` describes, as [`write_key`] writes it. An empty text is the key of a rule that counts
    /// all requests together.
    ///
    /// # Errors
    /// [`KeyTextError`] if `text` is not a key of this template.
    pub fn parse(&self, text: &str, ipv6_prefix: u8, hasher: KeyHasher) -> Result<KeyHash, KeyTextError> {
        let values = self.values(text)?;
        let mut encoded = key::Encoded::new();
        for (part, value) in self.0.iter().zip(&values) {
            if let (AttributeSource::Client { .. }, 1) = (part.source(), values.len())
                && let Some(IpAddr::V4(v4)) = part.address_of(value, ipv6_prefix)
            {
                return Ok(hasher.hash_u32(v4.to_bits()));
            }
            let bytes = part.bytes_of(value, ipv6_prefix);
            let invalid = || KeyTextError::Value { label: part.label(), value: value.clone() };
            key::push_one(part, &bytes.ok_or_else(invalid)?, &mut encoded);
        }
        Ok(hasher.hash(&encoded))
    }

    /// Splits a key into its values. A value that is not quoted contains a comma only if the key has one part.
    fn values(&self, text: &str) -> Result<Vec<String>, KeyTextError> {
        let labels: Vec<String> = self.0.iter().map(Attribute::label).collect();
        let form = || {
            let parts = labels.iter().map(|label| format!("{label}=…"));
            KeyTextError::Form(parts.collect::<Vec<_>>().join(SEPARATOR))
        };
        let (mut rest, mut values) = (text.trim(), Vec::new());
        for (index, label) in labels.iter().enumerate() {
            if index > 0 {
                rest = rest.strip_prefix(SEPARATOR).ok_or_else(form)?;
            }
            rest =
                rest.strip_prefix(label.as_str()).and_then(|rest| rest.strip_prefix('=')).ok_or_else(form)?;
            let (value, after) = read_value(rest, labels.len() == 1).ok_or_else(form)?;
            values.push(value);
            rest = after;
        }
        let is_last_quoted = text.trim_end().ends_with('"');
        match rest.is_empty() {
            true => Ok(values),
            false if rest.starts_with(SEPARATOR) && !is_last_quoted && !values.is_empty() => {
                Err(KeyTextError::Ambiguous)
            }
            false => Err(form()),
        }
    }
}

/// Reads one value; returns it and the text after it.
fn read_value(text: &str, is_only: bool) -> Option<(String, &str)> {
    if text.starts_with('"') {
        let mut quoted = serde_json::Deserializer::from_str(text).into_iter::<String>();
        let value = quoted.next()?.ok()?;
        return Some((value, &text[quoted.byte_offset()..]));
    }
    let end = text.find(SEPARATOR).filter(|_| !is_only).unwrap_or(text.len());
    Some((text[..end].to_owned(), &text[end..]))
}

/// Returns a key as text, from its parts; absent values are left out.
pub fn write_key(parts: &[LabeledKeyPart]) -> String {
    let part =
        |part: &LabeledKeyPart| Some(format!("{}={}", part.label, quoted_if_needed(part.value.as_deref()?)));
    parts.iter().filter_map(part).collect::<Vec<_>>().join(SEPARATOR)
}

fn quoted_if_needed(value: &str) -> String {
    let is_plain = !value.contains(',')
        && !value.starts_with('"')
        && value.trim() == value
        && !value.chars().any(char::is_control);
    if is_plain { value.to_owned() } else { serde_json::Value::from(value).to_string() }
}

#[cfg(test)]
mod tests;

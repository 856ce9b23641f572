//! Keys as text, such as `client_ip=203.0.113.7, path=/login`: what operators read and write.
//!
//! Each part is the attribute's label and its value. A value that could be mistaken for something else is written as a
//! JSON string, so a client cannot choose a value that reads like the key of another. Reading is guided by the rule's
//! key, and an ambiguous text is an error.

use std::net::IpAddr;

use super::attribute::{Attribute, AttributeSource, IncompleteKey, write_network};
use super::key::{self, KeyTemplate};
use super::pattern::Route;
use crate::identify::geo::{Continent, Country};
use crate::identify::{Attributes, client_ip, host, path};
use weir_limiter::key::{KeyHash, KeyHasher};

/// Separator of the parts of a key. The space may be omitted where the text can be read in one way only.
const SEPARATOR: &str = ", ";
/// Initial capacity of a key as text, enough for most.
const TYPICAL_KEY_LENGTH: usize = 64;

/// Why a text is not a key of a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyTextError {
    /// A part is missing, or not where it belongs.
    #[error("expected a key of the form `{0}`")]
    Form(String),
    #[error("the rule counts all requests together (`key: []`): leave out `key`")]
    NoKey,
    /// A value is not one of its attribute.
    #[error("not a value of `{label}`: {value}")]
    Value {
        /// Label of the attribute.
        label: String,
        value: String,
    },
    /// A network has another prefix length than those that the rule counts.
    #[error(
        "`{label}` counts {} here: expected an address, or a network with the prefix /{counted}, got `{value}`",
        counted_networks(*counted, *is_ipv4)
    )]
    Prefix {
        /// Label of the attribute.
        label: String,
        value: String,
        /// Prefix length of the networks that the rule counts.
        counted: u8,
        /// Whether the value is an IPv4 network.
        is_ipv4: bool,
    },
    /// The text can be read as two different keys.
    #[error(
        "ambiguous, because a value contains a comma: put the value in double quotes, or use `fingerprint`"
    )]
    Ambiguous,
}

/// A key that an operator has written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedKey {
    /// The key of the counters.
    pub hash: KeyHash,
    /// Its parts, with the values as requests have them: networks, hosts and paths in normal form.
    pub parts: Vec<LabeledKeyPart>,
}

/// A value that an operator has written, in the form in which requests have it.
struct NormalValue {
    bytes: Vec<u8>,
    text: String,
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
        match self.parameter().filter(|_| !self.is_address()) {
            Some(parameter) => format!("{}.{parameter}", self.word()),
            None => self.word().to_owned(),
        }
    }

    /// Whether its values may be credentials, which are not to be written to logs.
    pub fn may_be_secret(&self) -> bool {
        match self {
            Self::Header(_)
            | Self::Cookie(_)
            | Self::Query(_)
            | Self::Jwt(_)
            | Self::Body(_)
            | Self::EitherBody(_)
            | Self::Descriptor(_) => true,
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
            | Self::Listener
            | Self::Certificate(_) => false,
        }
    }

    /// Returns the value that [`Self::read`] finds in requests, for one that is written as `text`.
    fn normal_value(&self, text: &str, ipv6_prefix: u8) -> Result<NormalValue, KeyTextError> {
        let value = || KeyTextError::Value { label: self.label(), value: text.to_owned() };
        let text_value = |text: &str| NormalValue { bytes: text.as_bytes().into(), text: text.to_owned() };
        Ok(match self {
            Self::ClientIp | Self::ClientNetwork { .. } => self.network_value(text, ipv6_prefix)?,
            Self::Country => {
                let country = text.parse::<Country>().map_err(|_| value())?;
                NormalValue { bytes: country.code().into(), text: country.to_string() }
            }
            Self::Continent => text_value(text.parse::<Continent>().map_err(|_| value())?.code()),
            Self::System => {
                let number = text.strip_prefix("AS").unwrap_or(text).parse::<u32>().map_err(|_| value())?;
                NormalValue { bytes: number.to_be_bytes().into(), text: number.to_string() }
            }
            Self::Host => {
                let host = Some(host::normalise(text))
                    .filter(|name| host::is_valid(text.as_bytes()) && !name.is_empty());
                text_value(&host.ok_or_else(value)?)
            }
            Self::Path => {
                let path = Some(text).filter(|text| text.starts_with('/') || *text == "*");
                text_value(&path.and_then(|path| path::normalise(path).ok()).ok_or_else(value)?)
            }
            Self::Plan(_)
            | Self::Route
            | Self::Method
            | Self::Listener
            | Self::Header(_)
            | Self::Cookie(_)
            | Self::Query(_)
            | Self::Jwt(_)
            | Self::Certificate(_)
            | Self::Body(_)
            | Self::EitherBody(_)
            | Self::Descriptor(_) => text_value(text),
        })
    }

    /// Returns the counted network of an address or network. A network must have the prefix length
    /// that is counted, since a command affects one counter.
    fn network_value(&self, text: &str, ipv6_prefix: u8) -> Result<NormalValue, KeyTextError> {
        let invalid = || KeyTextError::Value { label: self.label(), value: text.to_owned() };
        let AttributeSource::Client { ipv4, ipv6 } = self.source() else { return Err(invalid()) };
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix.parse::<u8>().map_err(|_| invalid())?)),
            None => (text, None),
        };
        let ip = address.parse::<IpAddr>().map_err(|_| invalid())?.to_canonical();
        let counted = if ip.is_ipv4() { ipv4.unwrap_or(32) } else { ipv6.unwrap_or(ipv6_prefix) };
        if prefix.is_some_and(|prefix| prefix != counted) {
            let (label, value, is_ipv4) = (self.label(), text.to_owned(), ip.is_ipv4());
            return Err(KeyTextError::Prefix { label, value, counted, is_ipv4 });
        }
        let network = client_ip::network(ip, counted, counted);
        let (bytes, all): (Vec<u8>, u8) = match network {
            IpAddr::V4(v4) => (v4.octets().into(), 32),
            IpAddr::V6(v6) => (v6.octets().into(), 128),
        };
        Ok(NormalValue { bytes, text: write_network(network, counted, all) })
    }
}

/// Returns what a rule counts that has this prefix length.
fn counted_networks(prefix: u8, is_ipv4: bool) -> String {
    match (prefix, is_ipv4) {
        (32, true) => "single IPv4 addresses".to_owned(),
        (128, false) => "single IPv6 addresses".to_owned(),
        (prefix, true) => format!("/{prefix} networks of IPv4"),
        (prefix, false) => format!("/{prefix} networks of IPv6"),
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

    /// Returns the key that `text` describes, as [`write_key`] writes it. An empty text is the key of a rule that counts
    /// all requests together.
    ///
    /// # Errors
    /// [`KeyTextError`] if `text` is not a key of this template.
    pub fn parse(&self, text: &str, ipv6_prefix: u8, hasher: KeyHasher) -> Result<ParsedKey, KeyTextError> {
        let (mut encoded, mut parts, mut ipv4) = (key::Encoded::new(), Vec::new(), None);
        for (part, value) in self.0.iter().zip(self.values(text)?) {
            let NormalValue { bytes, text } = part.normal_value(&value, ipv6_prefix)?;
            key::push_one(part, &bytes, &mut encoded);
            if let AttributeSource::Client { .. } = part.source() {
                ipv4 = <[u8; 4]>::try_from(bytes).ok().map(u32::from_be_bytes);
            }
            parts.push(LabeledKeyPart { label: part.label(), value: Some(text) });
        }
        // A lone address is hashed as `Self::hash` does it.
        let hash = match ipv4.filter(|_| parts.len() == 1) {
            Some(ipv4) => hasher.hash_u32(ipv4),
            None => hasher.hash(&encoded),
        };
        Ok(ParsedKey { hash, parts })
    }

    /// Splits a key into its values. A value that is not quoted contains a comma only if the text can be read in one way
    /// nevertheless.
    fn values(&self, text: &str) -> Result<Vec<String>, KeyTextError> {
        let labels: Vec<String> = self.0.iter().map(Attribute::label).collect();
        let text = text.trim();
        if labels.is_empty() && !text.is_empty() {
            return Err(KeyTextError::NoKey);
        }
        let form = || {
            let parts = labels.iter().map(|label| format!("{label}=…"));
            KeyTextError::Form(parts.collect::<Vec<_>>().join(SEPARATOR))
        };
        let (mut rest, mut values) = (text, Vec::new());
        for (index, label) in labels.iter().enumerate() {
            rest = after_label(rest, label).ok_or_else(form)?;
            let next = labels.get(index + 1).map(String::as_str);
            let is_quoted = rest.starts_with('"');
            let read = if is_quoted { read_quoted(rest, next) } else { read_plain(rest, next) };
            let (value, after) = read.ok_or_else(form)?;
            if !is_quoted && labels.len() > 1 && is_ambiguous(&value, &labels) {
                return Err(KeyTextError::Ambiguous);
            }
            values.push(value);
            rest = after;
        }
        if rest.is_empty() { Ok(values) } else { Err(form()) }
    }
}

/// Returns the text after `LABEL=`.
fn after_label<'t>(text: &'t str, label: &str) -> Option<&'t str> {
    text.strip_prefix(label)?.strip_prefix('=')
}

/// Reads a quoted value, and the separator if a part with the label `next` follows; returns the value and the text after
/// it.
fn read_quoted<'t>(text: &'t str, next: Option<&str>) -> Option<(String, &'t str)> {
    let mut quoted = serde_json::Deserializer::from_str(text).into_iter::<String>();
    let value = quoted.next()?.ok()?;
    let after = &text[quoted.byte_offset()..];
    match next {
        Some(_) => Some((value, after.strip_prefix(',')?.trim_start_matches(' '))),
        None => Some((value, after)),
    }
}

/// Reads a value without quotes up to the part with the label `next`, or to the end; returns the value and that part.
fn read_plain<'t>(text: &'t str, next: Option<&str>) -> Option<(String, &'t str)> {
    let Some(label) = next else { return Some((text.to_owned(), "")) };
    let (end, part) = parts_after_commas(text).find(|(_, part)| after_label(part, label).is_some())?;
    Some((text[..end].to_owned(), part))
}

/// Yields the position of each comma, with the text after it and after spaces.
fn parts_after_commas(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.match_indices(',').map(|(at, _)| (at, text[at + 1..].trim_start_matches(' ')))
}

/// Whether a value without quotes might be several parts of a key with these labels.
fn is_ambiguous(value: &str, labels: &[String]) -> bool {
    let is_part = |part: &str| labels.iter().any(|label| after_label(part, label).is_some());
    value.contains(SEPARATOR) || parts_after_commas(value).any(|(_, part)| is_part(part))
}

/// Returns a key as text, from its parts; absent values are left out.
pub fn write_key(parts: &[LabeledKeyPart]) -> String {
    let mut text = String::with_capacity(TYPICAL_KEY_LENGTH);
    for part in parts {
        let Some(value) = &part.value else { continue };
        if !text.is_empty() {
            text.push_str(SEPARATOR);
        }
        text.push_str(&part.label);
        text.push('=');
        if needs_quotes(value) {
            text.push_str(&serde_json::Value::from(&**value).to_string());
        } else {
            text.push_str(value);
        }
    }
    text
}

fn needs_quotes(value: &str) -> bool {
    let is_plain = |byte: u8| matches!(byte, b'!'..=b'~') && byte != b',' && byte != b'"';
    !value.bytes().all(is_plain)
        && (value.contains(',')
            || value.starts_with('"')
            || value.trim() != value
            || value.chars().any(char::is_control))
}

#[cfg(test)]
mod tests;

//! Reads variables by type, as the reference's library does, and collects their problems.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::go_values::{GoDuration, parse_bool, parse_int};
use crate::quoting::quoted;

/// Maximum duration of a configuration. A connection of that age is never closed in practice.
const MAX_DURATION: Duration = Duration::from_secs(365 * 24 * 3600);

/// Reads variables and collects their problems.
pub(super) struct VariableReader<'a> {
    pub(super) variables: &'a BTreeMap<String, String>,
    pub(super) problems: Vec<String>,
    pub(super) notices: Vec<String>,
}

impl<'a> VariableReader<'a> {
    pub(super) fn text(&self, name: &str, default: &'a str) -> &'a str {
        self.variables.get(name).map_or(default, String::as_str)
    }

    pub(super) fn is_set(&self, name: &str) -> bool {
        !self.text(name, "").is_empty()
    }

    pub(super) fn report_invalid(&mut self, name: &str, expected: &str, got: &str) {
        self.problems.push(format!("{name}: expected {expected}, got {}", quoted(got)));
    }

    pub(super) fn boolean(&mut self, name: &str, default: bool) -> bool {
        let text = self.text(name, "");
        if text.is_empty() {
            return default;
        }
        parse_bool(text).unwrap_or_else(|| {
            self.report_invalid(name, "true or false", text);
            default
        })
    }

    pub(super) fn log_level(&mut self) -> Option<&'static str> {
        let text = self.text("LOG_LEVEL", "");
        match text.to_ascii_lowercase().as_str() {
            "" => None,
            "trace" => Some("trace"),
            "debug" => Some("debug"),
            "info" => Some("info"),
            "warn" | "warning" => Some("warn"),
            "error" | "fatal" | "panic" => Some("error"),
            _ => {
                self.report_invalid("LOG_LEVEL", "a level such as WARN", text);
                None
            }
        }
    }

    /// Reads `json`, in any case, or `text`. As in the reference, anything else is text, with a notice.
    pub(super) fn is_log_json(&mut self) -> bool {
        let text = self.text("LOG_FORMAT", "text");
        let is_json = text.eq_ignore_ascii_case("json");
        if !is_json && !text.is_empty() && !text.eq_ignore_ascii_case("text") {
            self.notices
                .push(format!("LOG_FORMAT: text is used, expected text or json, got {}", quoted(text)));
        }
        is_json
    }

    /// Reads `NAME:VALUE,NAME:VALUE`, as the reference's envconfig reads maps; anything else is an error.
    pub(super) fn name_value_map(&mut self, name: &str) -> Value {
        let (map, others) = split_pairs(self.text(name, ""), ':');
        for other in others {
            self.report_invalid(name, "comma-separated NAME:VALUE pairs", other);
        }
        map
    }

    /// Reads `NAME=VALUE,NAME=VALUE`. As in the reference, anything else is ignored, with a notice.
    pub(super) fn metadata(&mut self, name: &str) -> Value {
        let (metadata, others) = split_pairs(self.text(name, ""), '=');
        let ignored = |other| format!("{name}: pair ignored, expected NAME=VALUE, got {}", quoted(other));
        self.notices.extend(others.into_iter().map(ignored));
        metadata
    }

    pub(super) fn integer(&mut self, name: &str, expected: &str) -> Option<i64> {
        let text = self.text(name, "");
        if text.is_empty() {
            return None;
        }
        let value = parse_int(text);
        if value.is_none() {
            self.report_invalid(name, expected, text);
        }
        value
    }

    pub(super) fn port(&mut self, name: &str, default: u16) -> u16 {
        let Some(number) = self.integer(name, "a port") else { return default };
        u16::try_from(number).unwrap_or_else(|_| {
            self.report_invalid(name, "a port", self.text(name, ""));
            default
        })
    }

    /// Joins two variables to `HOST:PORT`.
    pub(super) fn host_and_port(&mut self, host: &str, port: &str, default: u16) -> String {
        let port = self.port(port, default);
        let given = self.text(host, "0.0.0.0");
        let known = if given.is_empty() { "0.0.0.0" } else { given };
        format!("{}:{port}", bracket_ipv6(known))
    }

    /// Reads a ratio and formats it as a percentage. Above 1 and below 0, no hit is near a limit, as with 1.
    pub(super) fn percentage(&mut self, name: &str, default: &'a str) -> String {
        let text = self.text(name, default);
        let text = if text.is_empty() { default } else { text };
        match text.parse::<f64>() {
            Ok(fraction) if (0.0..=1.0).contains(&fraction) => {
                let hundredths = (fraction * 10_000.0).round();
                format!("{}%", hundredths / 100.0)
            }
            Ok(_) => {
                let notice = format!(
                    "{name}: no hit counts as near its limit, because {} is not from 0 to 1",
                    quoted(text)
                );
                self.notices.push(notice);
                "100%".to_owned()
            }
            Err(_) => {
                self.report_invalid(name, "a number such as 0.8", text);
                default.to_owned()
            }
        }
    }

    /// Reads a duration of any sign.
    pub(super) fn go_duration(&mut self, name: &str, default: &'a str) -> Option<GoDuration> {
        let text = self.text(name, default);
        let text = if text.is_empty() { default } else { text };
        let parsed = GoDuration::parse(text);
        if parsed.is_none() {
            self.report_invalid(name, "a duration such as 1h30m", text);
        }
        parsed
    }

    /// Reads a duration above zero.
    pub(super) fn positive_duration(&mut self, name: &str, default: &'a str) -> Duration {
        let Some(duration) = self.go_duration(name, default) else { return Duration::ZERO };
        if duration.is_zero() || duration.is_negative() {
            self.report_invalid(name, "a duration above 0", self.text(name, default));
        }
        duration.to_millis().min(MAX_DURATION)
    }

    /// Reads a duration of which 0 means that there is none, and returns the maximum for that.
    pub(super) fn duration_or_unlimited(&mut self, name: &str, default: &'a str) -> Duration {
        let Some(duration) = self.go_duration(name, default) else { return MAX_DURATION };
        if duration.is_negative() {
            self.report_invalid(name, "a duration, or 0 for no limit", self.text(name, default));
        }
        match duration.to_millis() {
            Duration::ZERO => MAX_DURATION,
            length => length.min(MAX_DURATION),
        }
    }
}

/// Formats a duration as the configuration writes it.
pub(super) fn millis(duration: Duration) -> String {
    format!("{}ms", duration.as_millis())
}

/// Splits a comma-separated list into pairs at the character `separator`; also returns the items that are not
/// pairs.
fn split_pairs(text: &str, separator: char) -> (Value, Vec<&str>) {
    let (mut pairs, mut others) = (Map::new(), Vec::new());
    for pair in text.split(',').filter(|_| !text.trim().is_empty()) {
        match pair.split_once(separator) {
            Some((name, value)) if !name.trim().is_empty() => {
                pairs.insert(name.trim().to_owned(), json!(value.trim()));
            }
            _ => others.push(pair),
        }
    }
    (Value::Object(pairs), others)
}

/// Puts an IPv6 address into brackets, as needed before a port.
pub(super) fn bracket_ipv6(host: &str) -> String {
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) => format!("[{address}]"),
        _ => host.to_owned(),
    }
}

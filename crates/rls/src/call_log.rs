//! The log line of a call at debug level: what was asked, which limit applies, and the result.

use std::fmt::Write as _;

use super::request::{RlsDescriptor, RlsRequest};
use super::response::{Code, RlsDescriptorStatus, RlsError, RlsResponse};

/// Maximum length of the descriptors in a line, in bytes. A request may have a megabyte of them.
const MAX_LENGTH: usize = 8 * 1024;

pub(super) fn log_call(request: &RlsRequest, result: &Result<RlsResponse, RlsError>) {
    let domain = &*request.domain;
    match result {
        Ok(response) => {
            let descriptors = describe(&request.descriptors, &response.statuses);
            tracing::debug!(domain, code = code_name(response.overall_code), descriptors, "rate limit call");
        }
        Err(error) => {
            let descriptors = describe(&request.descriptors, &[]);
            tracing::debug!(domain, %error, descriptors, "rate limit call without a decision");
        }
    }
}

/// Returns `(KEY=VALUE),(KEY=VALUE): N per UNIT, M remaining, CODE` for each descriptor, separated by `; `.
fn describe(descriptors: &[RlsDescriptor], statuses: &[RlsDescriptorStatus]) -> String {
    let mut text = String::new();
    for (index, descriptor) in descriptors.iter().enumerate() {
        if text.len() > MAX_LENGTH {
            let _ = write!(text, "; {} more", descriptors.len() - index);
            break;
        }
        text.push_str(if index > 0 { "; " } else { "" });
        for (index, entry) in descriptor.entries.iter().enumerate() {
            let separator = if index > 0 { "," } else { "" };
            // Writing to a string cannot fail.
            let _ = write!(text, "{separator}({}={})", entry.key, cut(&entry.value));
        }
        if let Some(status) = statuses.get(index) {
            describe_status(&mut text, status);
        }
    }
    text
}

fn describe_status(text: &mut String, status: &RlsDescriptorStatus) {
    let code = code_name(status.code);
    let _ = match &status.current_limit {
        Some(limit) => {
            let unit = limit.unit.map_or("UNKNOWN", |unit| unit.as_str());
            let (count, left) = (limit.requests_per_unit, status.limit_remaining);
            let name = if limit.name.is_empty() { String::new() } else { format!(" `{}`", limit.name) };
            write!(text, ": limit{name} {count} per {unit}, {left} remaining, {code}")
        }
        None if status.limit_remaining == u32::MAX => write!(text, ": unlimited, {code}"),
        None => write!(text, ": no limit, {code}"),
    };
}

const fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::OverLimit => "OVER_LIMIT",
    }
}

/// Returns the beginning of a long value.
fn cut(value: &str) -> &str {
    value.char_indices().nth(200).map_or(value, |(end, _)| &value[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::RlsEntry;

    #[test]
    fn each_descriptor_has_its_limit_or_none() {
        let descriptor = |key: &str| RlsDescriptor {
            entries: vec![RlsEntry { key: key.to_owned(), value: "x".to_owned() }],
            ..RlsDescriptor::default()
        };
        let unlimited = RlsDescriptorStatus { limit_remaining: u32::MAX, ..RlsDescriptorStatus::default() };
        let statuses = [RlsDescriptorStatus::default(), unlimited];
        let text = describe(&[descriptor("a"), descriptor("b")], &statuses);
        assert_eq!(text, "(a=x): no limit, OK; (b=x): unlimited, OK");
        let many: Vec<_> = (0..256).map(|_| descriptor(&"k".repeat(1000))).collect();
        let text = describe(&many, &[]);
        assert!(text.len() < 2 * MAX_LENGTH && text.ends_with(" more"), "{}", text.len());
    }
}

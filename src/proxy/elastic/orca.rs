//! The load that an upstream reports with its answers: ORCA, Open Request Cost Aggregation.
//!
//! <https://www.envoyproxy.io/docs/envoy/latest/xds/data/orca/v3/orca_load_report.proto>. Read is what Envoy's own
//! balancer goes by: `application_utilization`, and where that is absent or zero, `cpu_utilization`. Memory is
//! left out, since a full heap says little about the next request. The header is passed on as it came: a balancer
//! in front of us may live by it.

use http::HeaderName;
use serde_json::Value;

use crate::headers::Headers;

/// `TEXT name=value, …`, `JSON {…}` or `BIN` and base64.
pub(super) const TEXT_OR_JSON: HeaderName = HeaderName::from_static("endpoint-load-metrics");
/// A report in base64.
const BINARY: HeaderName = HeaderName::from_static("endpoint-load-metrics-bin");

const APPLICATION: &str = "application_utilization";
const CPU: &str = "cpu_utilization";
/// Their numbers in the message.
const APPLICATION_FIELD: u64 = 9;
const CPU_FIELD: u64 = 1;
/// Far more than any report takes.
const MOST_OCTETS: usize = 8 * 1024;

/// The two numbers we want of a report.
#[derive(Clone, Copy, Debug, Default)]
struct Report {
    application: Option<f64>,
    cpu: Option<f64>,
}

impl Report {
    /// What to go by; 1 is all the upstream has, more is possible.
    fn utilization(self) -> Option<f64> {
        let told = |value: &f64| value.is_finite() && *value >= 0.0;
        let application = self.application.filter(told).filter(|value| *value > 0.0);
        application.or_else(|| self.cpu.filter(told))
    }
}

/// The utilization that an answer reports, if it does.
pub(in crate::proxy) fn utilization(headers: &Headers) -> Option<f64> {
    let report = if let Some(value) = headers.get(&TEXT_OR_JSON) {
        let value = std::str::from_utf8(value)
            .ok()
            .filter(|value| value.is_ascii())
            .filter(|value| value.len() <= MOST_OCTETS)?;
        let (form, report) = value.split_once(' ')?;
        match form {
            "TEXT" => text(report),
            "JSON" => json(report)?,
            "BIN" => binary(report.as_bytes())?,
            _ => return None,
        }
    } else {
        let value = headers.get(&BINARY)?;
        binary(value).filter(|_| value.len() <= MOST_OCTETS)?
    };
    report.utilization()
}

/// `cpu_utilization=0.3, named_metrics.queue=7`
fn text(report: &str) -> Report {
    let mut found = Report::default();
    for (name, value) in report.split(',').filter_map(|entry| entry.split_once('=')) {
        let value = value.trim().parse().ok();
        match name.trim() {
            APPLICATION => found.application = value,
            CPU => found.cpu = value,
            _ => {}
        }
    }
    found
}

/// Protobuf's JSON may have names as in the message, or in camel case.
fn json(report: &str) -> Option<Report> {
    let report: Value = serde_json::from_str(report).ok()?;
    let number = |name, other| report.get(name).or_else(|| report.get(other))?.as_f64();
    Some(Report {
        application: number(APPLICATION, "applicationUtilization"),
        cpu: number(CPU, "cpuUtilization"),
    })
}

fn binary(text: &[u8]) -> Option<Report> {
    message(&base64(text)?)
}

/// A message as <https://protobuf.dev/programming-guides/encoding/> has it, of which two fields of eight octets
/// are kept and everything else is skipped.
fn message(mut octets: &[u8]) -> Option<Report> {
    let mut found = Report::default();
    while !octets.is_empty() {
        let tag = varint(&mut octets)?;
        let length = match tag & 7 {
            0 => {
                varint(&mut octets)?;
                0
            }
            1 => 8,
            2 => usize::try_from(varint(&mut octets)?).ok()?,
            5 => 4,
            _ => return None,
        };
        let (content, rest) = octets.split_at_checked(length)?;
        octets = rest;
        let value = <[u8; 8]>::try_from(content).ok().filter(|_| tag & 7 == 1).map(f64::from_le_bytes);
        match tag >> 3 {
            APPLICATION_FIELD => found.application = value,
            CPU_FIELD => found.cpu = value,
            _ => {}
        }
    }
    Some(found)
}

fn varint(octets: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = octets.split_first()?;
        *octets = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Either alphabet of RFC 4648, with or without padding, as senders differ.
fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let text = text.trim_ascii();
    let digits = text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"=")).unwrap_or(text);
    let mut octets = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    for group in digits.chunks(4) {
        let mut bits = 0_u32;
        for digit in group {
            bits = bits << 6 | u32::from(sextet(*digit)?);
        }
        let whole = match group.len() {
            4 => 3,
            3 => 2,
            2 => 1,
            _ => return None,
        };
        bits <<= 6 * (4 - group.len());
        octets.extend_from_slice(&bits.to_be_bytes()[1..=whole]);
    }
    Some(octets)
}

const fn sextet(digit: u8) -> Option<u8> {
    match digit {
        b'A'..=b'Z' => Some(digit - b'A'),
        b'a'..=b'z' => Some(digit - b'a' + 26),
        b'0'..=b'9' => Some(digit - b'0' + 52),
        b'+' | b'-' => Some(62),
        b'/' | b'_' => Some(63),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn of(name: &HeaderName, value: &str) -> Option<f64> {
        let mut headers = Headers::default();
        headers.set(name, &HeaderValue::from_str(value).unwrap());
        utilization(&headers)
    }

    #[test]
    fn every_form_is_read() {
        // protoc's encoding of cpu_utilization: 0.5, rps: 300, named_metrics: {q: 7}, application_utilization: 0.75
        let encoded = "CQAAAAAAAOA/GKwCQgwKAXERAAAAAAAAHEBJAAAAAAAA6D8=";
        let said = [
            of(&TEXT_OR_JSON, "TEXT cpu_utilization=0.3, mem_utilization=0.8"),
            of(
                &TEXT_OR_JSON,
                "TEXT cpu_utilization=0.3,application_utilization=1.25,named_metrics.cpu_utilization=9",
            ),
            of(&TEXT_OR_JSON, r#"JSON {"cpu_utilization": 0.5, "named_metrics": {"x": 1}}"#),
            of(&TEXT_OR_JSON, r#"JSON {"applicationUtilization": 1, "cpuUtilization": 0.5}"#),
            of(&TEXT_OR_JSON, &format!("BIN {encoded}")),
            of(&BINARY, encoded),
            of(&BINARY, encoded.trim_end_matches('=')),
        ];
        assert_eq!(said, [0.3, 1.25, 0.5, 1.0, 0.75, 0.75, 0.75].map(Some));
    }

    #[test]
    fn an_application_that_says_nothing_leaves_it_to_its_cpu() {
        assert_eq!(of(&TEXT_OR_JSON, "TEXT application_utilization=0, cpu_utilization=0.4"), Some(0.4));
        assert_eq!(of(&TEXT_OR_JSON, "TEXT application_utilization=NaN, cpu_utilization=0.4"), Some(0.4));
        assert_eq!(of(&TEXT_OR_JSON, "TEXT cpu_utilization=0"), Some(0.0));
    }

    #[test]
    fn what_is_no_report_says_nothing() {
        let wrong = [
            "",
            "TEXT",
            "TEXT ",
            "TEXT cpu_utilization",
            "TEXT cpu_utilization=lots",
            "TEXT cpu_utilization=-1",
            "TEXT cpu_utilization=inf",
            "JSON {",
            "JSON []",
            "JSON {\"cpu_utilization\": \"1\"}",
            "BIN !",
            "BIN A",
            "XML <a/>",
            "cpu_utilization=0.5",
        ];
        assert!(wrong.iter().all(|value| of(&TEXT_OR_JSON, value).is_none()));
        // Cut off in the middle of a number, a length beyond the end, a group, a tag without end.
        for value in ["CQAAAAAA", "Qv8=", "Cw==", "gICAgICAgICAgIA="] {
            assert_eq!(of(&BINARY, value), None, "{value}");
        }
        assert_eq!(utilization(&Headers::default()), None);
    }
}

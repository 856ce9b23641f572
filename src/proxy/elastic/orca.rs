//! Load reports in response headers: ORCA, Open Request Cost Aggregation.
//!
//! <https://www.envoyproxy.io/docs/envoy/latest/xds/data/orca/v3/orca_load_report.proto>. Reads what Envoy's load
//! balancer uses: `application_utilization`, or `cpu_utilization` if that is absent or zero. Memory is ignored, because
//! a full heap tells little about the next request. The header is forwarded unchanged, as a load balancer in front may
//! depend on it.

use http::HeaderName;
use serde_json::Value;

use weir_http::headers::Headers;

/// A report as `TEXT name=value, …`, `JSON {…}` or `BIN` followed by base64.
pub(super) const TEXT_OR_JSON: HeaderName = HeaderName::from_static("endpoint-load-metrics");
/// A report as base64.
const BINARY: HeaderName = HeaderName::from_static("endpoint-load-metrics-bin");

const APPLICATION: &str = "application_utilization";
const CPU: &str = "cpu_utilization";
/// Field numbers in the protobuf message.
const APPLICATION_FIELD: u64 = 9;
const CPU_FIELD: u64 = 1;
/// Maximum length of a report, far above what is needed.
const MAX_REPORT_SIZE: usize = 8 * 1024;

/// The two values that are used of a report.
#[derive(Clone, Copy, Debug, Default)]
struct LoadReport {
    application: Option<f64>,
    cpu: Option<f64>,
}

impl LoadReport {
    /// Returns the utilization to use; 1 is the upstream's full capacity, and more is possible.
    fn utilization(self) -> Option<f64> {
        let told = |value: &f64| value.is_finite() && *value >= 0.0;
        let application = self.application.filter(told).filter(|value| *value > 0.0);
        application.or_else(|| self.cpu.filter(told))
    }
}

/// Returns the utilization that a response reports, if any.
pub(in crate::proxy) fn utilization(headers: &Headers) -> Option<f64> {
    let report = if let Some(value) = headers.get(&TEXT_OR_JSON) {
        let value = std::str::from_utf8(value)
            .ok()
            .filter(|value| value.is_ascii())
            .filter(|value| value.len() <= MAX_REPORT_SIZE)?;
        let (form, report) = value.split_once(' ')?;
        match form {
            "TEXT" => text(report),
            "JSON" => json(report)?,
            "BIN" => binary(report.as_bytes())?,
            _ => return None,
        }
    } else {
        let value = headers.get(&BINARY)?;
        binary(value).filter(|_| value.len() <= MAX_REPORT_SIZE)?
    };
    report.utilization()
}

/// Parses a report such as `cpu_utilization=0.3, named_metrics.queue=7`.
fn text(report: &str) -> LoadReport {
    let mut found = LoadReport::default();
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

/// Parses protobuf JSON, with field names either as in the message or in camel case.
fn json(report: &str) -> Option<LoadReport> {
    let report: Value = serde_json::from_str(report).ok()?;
    let number = |name, other| report.get(name).or_else(|| report.get(other))?.as_f64();
    Some(LoadReport {
        application: number(APPLICATION, "applicationUtilization"),
        cpu: number(CPU, "cpuUtilization"),
    })
}

fn binary(text: &[u8]) -> Option<LoadReport> {
    message(&base64(text)?)
}

/// Decodes a protobuf message (<https://protobuf.dev/programming-guides/encoding/>). Reads two fields of eight bytes
/// and skips all others.
fn message(mut bytes: &[u8]) -> Option<LoadReport> {
    let mut found = LoadReport::default();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let length = match tag & 7 {
            0 => {
                varint(&mut bytes)?;
                0
            }
            1 => 8,
            2 => usize::try_from(varint(&mut bytes)?).ok()?,
            5 => 4,
            _ => return None,
        };
        let (content, rest) = bytes.split_at_checked(length)?;
        bytes = rest;
        let value = <[u8; 8]>::try_from(content).ok().filter(|_| tag & 7 == 1).map(f64::from_le_bytes);
        match tag >> 3 {
            APPLICATION_FIELD => found.application = value,
            CPU_FIELD => found.cpu = value,
            _ => {}
        }
    }
    Some(found)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Decodes either alphabet of RFC 4648, with or without padding, as senders differ.
fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let text = text.trim_ascii();
    let digits = text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"=")).unwrap_or(text);
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3 + 2);
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
        bytes.extend_from_slice(&bits.to_be_bytes()[1..=whole]);
    }
    Some(bytes)
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

    fn utilization_of_header(name: &HeaderName, value: &str) -> Option<f64> {
        let mut headers = Headers::default();
        headers.set(name, &HeaderValue::from_str(value).unwrap());
        utilization(&headers)
    }

    #[test]
    fn orca_reports_are_parsed_in_text_json_and_binary() {
        // protoc's encoding of cpu_utilization: 0.5, rps: 300, named_metrics: {q: 7}, application_utilization: 0.75
        let encoded = "CQAAAAAAAOA/GKwCQgwKAXERAAAAAAAAHEBJAAAAAAAA6D8=";
        let said = [
            utilization_of_header(&TEXT_OR_JSON, "TEXT cpu_utilization=0.3, mem_utilization=0.8"),
            utilization_of_header(
                &TEXT_OR_JSON,
                "TEXT cpu_utilization=0.3,application_utilization=1.25,named_metrics.cpu_utilization=9",
            ),
            utilization_of_header(
                &TEXT_OR_JSON,
                r#"JSON {"cpu_utilization": 0.5, "named_metrics": {"x": 1}}"#,
            ),
            utilization_of_header(
                &TEXT_OR_JSON,
                r#"JSON {"applicationUtilization": 1, "cpuUtilization": 0.5}"#,
            ),
            utilization_of_header(&TEXT_OR_JSON, &format!("BIN {encoded}")),
            utilization_of_header(&BINARY, encoded),
            utilization_of_header(&BINARY, encoded.trim_end_matches('=')),
        ];
        assert_eq!(said, [0.3, 1.25, 0.5, 1.0, 0.75, 0.75, 0.75].map(Some));
    }

    #[test]
    fn cpu_utilization_is_used_without_application_utilization() {
        assert_eq!(
            utilization_of_header(&TEXT_OR_JSON, "TEXT application_utilization=0, cpu_utilization=0.4"),
            Some(0.4)
        );
        assert_eq!(
            utilization_of_header(&TEXT_OR_JSON, "TEXT application_utilization=NaN, cpu_utilization=0.4"),
            Some(0.4)
        );
        assert_eq!(utilization_of_header(&TEXT_OR_JSON, "TEXT cpu_utilization=0"), Some(0.0));
    }

    #[test]
    fn invalid_orca_reports_are_ignored() {
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
        assert!(wrong.iter().all(|value| utilization_of_header(&TEXT_OR_JSON, value).is_none()));
        // Cut off in the middle of a number, a length beyond the end, a group, a tag without end.
        for value in ["CQAAAAAA", "Qv8=", "Cw==", "gICAgICAgICAgIA="] {
            assert_eq!(utilization_of_header(&BINARY, value), None, "{value}");
        }
        assert_eq!(utilization(&Headers::default()), None);
    }
}

//! Requests and responses in ProtoJSON (protobuf.dev): field names in snake or camel case, 64-bit numbers as text,
//! default values omitted.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, Visitor};
use serde_json::{Map, Value, json};

use super::request::{LimitOverride, RlsDescriptor, RlsEntry, RlsRequest};
use super::response::{Code, CurrentLimit, RlsDescriptorStatus, RlsResponse};
use super::unit::RlsUnit;

/// Parses a request.
///
/// # Errors
/// The parser's error.
pub fn parse_request(text: &[u8]) -> Result<RlsRequest, serde_json::Error> {
    let JsonRequest { domain, descriptors, hits_addend } = serde_json::from_slice(text)?;
    Ok(RlsRequest {
        domain: domain.unwrap_or_default(),
        descriptors: descriptors.into_iter().flatten().map(JsonDescriptor::into_descriptor).collect(),
        hits_addend: hits_addend.map_or(0, |hits| hits.0),
    })
}

/// Converts a response to JSON.
pub fn response_to_json(response: &RlsResponse) -> Value {
    let mut fields = Map::new();
    fields.insert("overallCode".to_owned(), code_to_json(response.overall_code));
    fields.insert("statuses".to_owned(), response.statuses.iter().map(status_to_json).collect());
    if !response.headers.is_empty() {
        let header = |(name, value): &(std::sync::Arc<str>, String)| json!({"key": &**name, "value": value});
        fields.insert("responseHeadersToAdd".to_owned(), response.headers.iter().map(header).collect());
    }
    if let Some(metadata) = &response.metadata {
        fields.insert("dynamicMetadata".to_owned(), Value::Object(metadata.clone()));
    }
    fields.into()
}

fn status_to_json(status: &RlsDescriptorStatus) -> Value {
    let mut fields = Map::new();
    fields.insert("code".to_owned(), code_to_json(status.code));
    if let Some(limit) = &status.current_limit {
        fields.insert("currentLimit".to_owned(), limit_to_json(limit));
    }
    if status.limit_remaining > 0 {
        fields.insert("limitRemaining".to_owned(), status.limit_remaining.into());
    }
    if let Some(reset) = status.duration_until_reset {
        fields.insert("durationUntilReset".to_owned(), format!("{}s", reset.as_secs()).into());
    }
    fields.into()
}

fn limit_to_json(limit: &CurrentLimit) -> Value {
    let mut fields = Map::new();
    if !limit.name.is_empty() {
        fields.insert("name".to_owned(), (*limit.name).into());
    }
    if limit.requests_per_unit > 0 {
        fields.insert("requestsPerUnit".to_owned(), limit.requests_per_unit.into());
    }
    // A missing unit means UNKNOWN.
    if let Some(unit) = limit.unit {
        fields.insert("unit".to_owned(), unit.as_str().into());
    }
    fields.into()
}

fn code_to_json(code: Code) -> Value {
    match code {
        Code::Ok => "OK",
        Code::OverLimit => "OVER_LIMIT",
    }
    .into()
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct JsonRequest {
    domain: Option<String>,
    descriptors: Option<Vec<JsonDescriptor>>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<WholeNumber<u32>>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct JsonDescriptor {
    entries: Option<Vec<JsonEntry>>,
    limit: Option<JsonLimit>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<WholeNumber<u64>>,
    #[serde(alias = "is_negative_hits")]
    is_negative_hits: Option<bool>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonEntry {
    key: Option<String>,
    value: Option<String>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct JsonLimit {
    #[serde(alias = "requests_per_unit")]
    requests_per_unit: Option<WholeNumber<u32>>,
    unit: Option<JsonUnit>,
}

impl JsonDescriptor {
    fn into_descriptor(self) -> RlsDescriptor {
        let entry = |JsonEntry { key, value }| RlsEntry {
            key: key.unwrap_or_default(),
            value: value.unwrap_or_default(),
        };
        let limit = |limit: JsonLimit| LimitOverride {
            requests_per_unit: limit.requests_per_unit.map_or(0, |count| count.0),
            unit: limit.unit.and_then(|unit| unit.0),
        };
        RlsDescriptor {
            entries: self.entries.into_iter().flatten().map(entry).collect(),
            limit: self.limit.map(limit),
            hits_addend: self.hits_addend.map(|hits| hits.0),
            is_negative_hits: self.is_negative_hits.unwrap_or_default(),
        }
    }
}

/// A whole number, as ProtoJSON permits it: as a number, as text, or as a floating-point number without a fraction.
struct WholeNumber<T>(T);

impl<'de, T: TryFrom<u64>> Deserialize<'de> for WholeNumber<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = deserializer.deserialize_any(WholeNumberVisitor)?;
        T::try_from(number).map(Self).map_err(|_| D::Error::custom(format!("number is too large: {number}")))
    }
}

struct WholeNumberVisitor;

impl Visitor<'_> for WholeNumberVisitor {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a non-negative integer")
    }

    fn visit_u64<E>(self, number: u64) -> Result<u64, E> {
        Ok(number)
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<u64, E> {
        // Every whole double below this is exact as a u64.
        let is_whole = number.fract() == 0.0 && (0.0..18_446_744_073_709_551_616.0).contains(&number);
        if is_whole { Ok(number as u64) } else { Err(E::custom(format!("not an integer: {number}"))) }
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<u64, E> {
        text.parse().map_err(|_| E::custom(format!("not an integer: {text}")))
    }
}

/// A unit by name or by number. An unknown number is kept as `None` and rejected later with an invalid request.
struct JsonUnit(Option<RlsUnit>);

impl<'de> Deserialize<'de> for JsonUnit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonUnitVisitor)
    }
}

struct JsonUnitVisitor;

impl Visitor<'_> for JsonUnitVisitor {
    type Value = JsonUnit;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a unit of time")
    }

    fn visit_u64<E>(self, number: u64) -> Result<JsonUnit, E> {
        Ok(JsonUnit(RlsUnit::from_request_number(number)))
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<JsonUnit, E> {
        match name {
            "UNKNOWN" => Ok(JsonUnit(None)),
            // Requests have no week, and names are case-sensitive.
            _ => {
                match RlsUnit::from_name(name).filter(|unit| *unit != RlsUnit::Week && unit.as_str() == name)
                {
                    Some(unit) => Ok(JsonUnit(Some(unit))),
                    None => Err(E::custom(format!("unknown unit: {name}"))),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn parse(text: &str) -> Result<RlsRequest, String> {
        parse_request(text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn json_request_accepts_snake_and_camel_case_and_every_form_of_numbers() {
        let one = r#"{"domain":"d","hitsAddend":2,"descriptors":[{"entries":[{"key":"k","value":"v"}],
            "limit":{"requestsPerUnit":"7","unit":"HOUR"},"hitsAddend":"3","isNegativeHits":true}]}"#;
        let other = r#"{"domain":"d","hits_addend":2.0,"descriptors":[{"entries":[{"key":"k","value":"v"}],
            "limit":{"requests_per_unit":7e0,"unit":3},"hits_addend":3,"is_negative_hits":true}]}"#;
        let request = parse(one).unwrap();
        assert_eq!(parse(other).unwrap(), request);
        let descriptor = &request.descriptors[0];
        assert_eq!((request.hits_addend, descriptor.hits_addend), (2, Some(3)));
        assert_eq!(descriptor.limit, Some(LimitOverride { requests_per_unit: 7, unit: Some(RlsUnit::Hour) }));
    }

    #[test]
    fn json_request_fields_that_are_omitted_have_defaults() {
        assert_eq!(parse("{}").unwrap(), RlsRequest::default());
        assert_eq!(
            parse(r#"{"domain":null,"descriptors":[{"entries":null}]}"#).unwrap().descriptors.len(),
            1
        );
    }

    #[test]
    fn invalid_json_requests_are_rejected() {
        for text in [
            "",
            "[]",
            "{",
            r#"{"domain":1}"#,
            r#"{"other":1}"#,
            r#"{"hitsAddend":-1}"#,
            r#"{"hitsAddend":1.5}"#,
            r#"{"hitsAddend":4294967296}"#,
            r#"{"domain":"a","domain":"b"}"#,
            r#"{"descriptors":[{"limit":{"unit":"WEEK"}}]}"#,
            r#"{"descriptors":[{"limit":{"unit":"hour"}}]}"#,
            r#"{} {}"#,
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn json_response_omits_default_values() {
        let limit = CurrentLimit { requests_per_unit: 5, unit: Some(RlsUnit::Minute), name: "".into() };
        let over_limit = RlsDescriptorStatus {
            code: Code::OverLimit,
            current_limit: Some(limit),
            limit_remaining: 0,
            duration_until_reset: Some(Duration::from_secs(12)),
        };
        let statuses = vec![RlsDescriptorStatus::default(), over_limit];
        let response = RlsResponse { overall_code: Code::OverLimit, statuses, ..RlsResponse::default() };
        let expected = json!({"overallCode": "OVER_LIMIT", "statuses": [{"code": "OK"}, {
            "code": "OVER_LIMIT",
            "currentLimit": {"requestsPerUnit": 5, "unit": "MINUTE"},
            "durationUntilReset": "12s",
        }]});
        assert_eq!(response_to_json(&response), expected);
    }
}

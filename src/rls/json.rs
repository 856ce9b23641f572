//! Requests and responses in ProtoJSON (protobuf.dev): field names in snake or camel case, 64-bit numbers as text,
//! default values omitted.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, Visitor};
use serde_json::{Map, Value, json};

use super::answer::{Answer, Code, CurrentLimit, Status};
use super::request::{Descriptor, Entry, Override, Request};
use super::unit::Unit;

/// Parses a request.
///
/// # Errors
/// The parser's error.
pub fn request(text: &[u8]) -> Result<Request, serde_json::Error> {
    let Question { domain, descriptors, hits_addend } = serde_json::from_slice(text)?;
    Ok(Request {
        domain: domain.unwrap_or_default(),
        descriptors: descriptors.into_iter().flatten().map(Asked::descriptor).collect(),
        hits_addend: hits_addend.map_or(0, |hits| hits.0),
    })
}

/// Converts a response to JSON.
pub fn answer(answer: &Answer) -> Value {
    let mut fields = Map::new();
    fields.insert("overallCode".to_owned(), code(answer.overall));
    fields.insert("statuses".to_owned(), answer.statuses.iter().map(status).collect());
    if !answer.headers.is_empty() {
        let header = |(name, value): &(std::sync::Arc<str>, String)| json!({"key": &**name, "value": value});
        fields.insert("responseHeadersToAdd".to_owned(), answer.headers.iter().map(header).collect());
    }
    if let Some(metadata) = &answer.metadata {
        fields.insert("dynamicMetadata".to_owned(), Value::Object(metadata.clone()));
    }
    fields.into()
}

fn status(status: &Status) -> Value {
    let mut fields = Map::new();
    fields.insert("code".to_owned(), code(status.code));
    if let Some(limit) = &status.current_limit {
        fields.insert("currentLimit".to_owned(), current_limit(limit));
    }
    if status.limit_remaining > 0 {
        fields.insert("limitRemaining".to_owned(), status.limit_remaining.into());
    }
    if let Some(reset) = status.duration_until_reset {
        fields.insert("durationUntilReset".to_owned(), format!("{}s", reset.as_secs()).into());
    }
    fields.into()
}

fn current_limit(limit: &CurrentLimit) -> Value {
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

fn code(code: Code) -> Value {
    match code {
        Code::Ok => "OK",
        Code::OverLimit => "OVER_LIMIT",
    }
    .into()
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Question {
    domain: Option<String>,
    descriptors: Option<Vec<Asked>>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<Whole<u32>>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Asked {
    entries: Option<Vec<AskedEntry>>,
    limit: Option<AskedLimit>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<Whole<u64>>,
    #[serde(alias = "is_negative_hits")]
    is_negative_hits: Option<bool>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct AskedEntry {
    key: Option<String>,
    value: Option<String>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct AskedLimit {
    #[serde(alias = "requests_per_unit")]
    requests_per_unit: Option<Whole<u32>>,
    unit: Option<AskedUnit>,
}

impl Asked {
    fn descriptor(self) -> Descriptor {
        let entry = |AskedEntry { key, value }| Entry {
            key: key.unwrap_or_default(),
            value: value.unwrap_or_default(),
        };
        let limit = |limit: AskedLimit| Override {
            requests_per_unit: limit.requests_per_unit.map_or(0, |count| count.0),
            unit: limit.unit.and_then(|unit| unit.0),
        };
        Descriptor {
            entries: self.entries.into_iter().flatten().map(entry).collect(),
            limit: self.limit.map(limit),
            hits_addend: self.hits_addend.map(|hits| hits.0),
            is_negative_hits: self.is_negative_hits.unwrap_or_default(),
        }
    }
}

/// A whole number, as ProtoJSON permits it: as a number, as text, or as a floating-point number without a fraction.
struct Whole<T>(T);

impl<'de, T: TryFrom<u64>> Deserialize<'de> for Whole<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = deserializer.deserialize_any(WholeVisitor)?;
        T::try_from(number).map(Self).map_err(|_| D::Error::custom(format!("number is too large: {number}")))
    }
}

struct WholeVisitor;

impl Visitor<'_> for WholeVisitor {
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
struct AskedUnit(Option<Unit>);

impl<'de> Deserialize<'de> for AskedUnit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UnitVisitor)
    }
}

struct UnitVisitor;

impl Visitor<'_> for UnitVisitor {
    type Value = AskedUnit;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a unit of time")
    }

    fn visit_u64<E>(self, number: u64) -> Result<AskedUnit, E> {
        Ok(AskedUnit(Unit::of_request(number)))
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<AskedUnit, E> {
        match name {
            "UNKNOWN" => Ok(AskedUnit(None)),
            // Requests have no week, and names are case-sensitive.
            _ => match Unit::named(name).filter(|unit| *unit != Unit::Week && unit.as_str() == name) {
                Some(unit) => Ok(AskedUnit(Some(unit))),
                None => Err(E::custom(format!("unknown unit: {name}"))),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn read(text: &str) -> Result<Request, String> {
        request(text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn names_of_fields_are_taken_in_either_case_and_numbers_in_every_form() {
        let one = r#"{"domain":"d","hitsAddend":2,"descriptors":[{"entries":[{"key":"k","value":"v"}],
            "limit":{"requestsPerUnit":"7","unit":"HOUR"},"hitsAddend":"3","isNegativeHits":true}]}"#;
        let other = r#"{"domain":"d","hits_addend":2.0,"descriptors":[{"entries":[{"key":"k","value":"v"}],
            "limit":{"requests_per_unit":7e0,"unit":3},"hits_addend":3,"is_negative_hits":true}]}"#;
        let request = read(one).unwrap();
        assert_eq!(read(other).unwrap(), request);
        let descriptor = &request.descriptors[0];
        assert_eq!((request.hits_addend, descriptor.hits_addend), (2, Some(3)));
        assert_eq!(descriptor.limit, Some(Override { requests_per_unit: 7, unit: Some(Unit::Hour) }));
    }

    #[test]
    fn nothing_is_what_is_left_out() {
        assert_eq!(read("{}").unwrap(), Request::default());
        assert_eq!(read(r#"{"domain":null,"descriptors":[{"entries":null}]}"#).unwrap().descriptors.len(), 1);
    }

    #[test]
    fn what_is_not_a_question_is_refused() {
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
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_answer_leaves_out_what_is_nothing() {
        let limit = CurrentLimit { requests_per_unit: 5, unit: Some(Unit::Minute), name: "".into() };
        let over = Status {
            code: Code::OverLimit,
            current_limit: Some(limit),
            limit_remaining: 0,
            duration_until_reset: Some(Duration::from_secs(12)),
        };
        let statuses = vec![Status::default(), over];
        let whole = Answer { overall: Code::OverLimit, statuses, ..Answer::default() };
        let wanted = json!({"overallCode": "OVER_LIMIT", "statuses": [{"code": "OK"}, {
            "code": "OVER_LIMIT",
            "currentLimit": {"requestsPerUnit": 5, "unit": "MINUTE"},
            "durationUntilReset": "12s",
        }]});
        assert_eq!(answer(&whole), wanted);
    }
}

//! Parser of autonomous system numbers, for the record formats of several databases.
//!
//! MaxMind and DB-IP have an unsigned number of 32 bits in `autonomous_system_number`, IPinfo has `"AS64500"` in `asn`.
//! Others use different number types or nest the value one level deeper.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Fields that contain the number, or a map that contains it.
const FIELDS: [&str; 5] = ["autonomous_system_number", "asn", "as_number", "as", "traits"];

/// Number of an autonomous system, if a record has a valid one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AsnField(pub(super) Option<u32>);

impl<'de> Deserialize<'de> for AsnField {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyType)
    }
}

struct AnyType;

impl<'de> Visitor<'de> for AnyType {
    type Value = AsnField;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an autonomous system number")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<AsnField, A::Error> {
        let mut found = None;
        while let Some(name) = map.next_key::<&str>()? {
            if found.is_none() && FIELDS.contains(&name) {
                found = map.next_value::<AsnField>()?.0;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(AsnField(found))
    }

    fn visit_str<E>(self, text: &str) -> Result<AsnField, E> {
        let word = text.split_ascii_whitespace().next().unwrap_or_default();
        let digits = match word.get(..2) {
            Some(prefix) if prefix.eq_ignore_ascii_case("as") => &word[2..],
            _ => word,
        };
        // `parse` alone would also accept a sign.
        let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
        Ok(AsnField(digits.parse().ok().filter(|_| is_number)))
    }

    fn visit_u64<E>(self, number: u64) -> Result<AsnField, E> {
        Ok(AsnField(u32::try_from(number).ok()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<AsnField, E> {
        Ok(AsnField(u32::try_from(number).ok()))
    }

    fn visit_u128<E>(self, number: u128) -> Result<AsnField, E> {
        Ok(AsnField(u32::try_from(number).ok()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<AsnField, E> {
        // Only a whole number is formatted without a fraction.
        Ok(AsnField(number.to_string().parse().ok()))
    }

    fn visit_bool<E>(self, _: bool) -> Result<AsnField, E> {
        Ok(AsnField(None))
    }

    fn visit_bytes<E>(self, _: &[u8]) -> Result<AsnField, E> {
        Ok(AsnField(None))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<AsnField, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(AsnField(None))
    }
}

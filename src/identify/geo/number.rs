//! The number of an autonomous system in a record, as makers of databases write it.
//!
//! MaxMind and DB-IP have an unsigned number of 32 bits in `autonomous_system_number`, IPinfo has `"AS64500"` in `asn`, and
//! others have other types of numbers or put it one level deeper.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// The fields that have it, or have a map that has it.
const FIELDS: [&str; 5] = ["autonomous_system_number", "asn", "as_number", "as", "traits"];

/// The number of an autonomous system, if a record has one that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Number(pub(super) Option<u32>);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyType)
    }
}

struct AnyType;

impl<'de> Visitor<'de> for AnyType {
    type Value = Number;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the number of an autonomous system")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Number, A::Error> {
        let mut found = None;
        while let Some(name) = map.next_key::<&str>()? {
            if found.is_none() && FIELDS.contains(&name) {
                found = map.next_value::<Number>()?.0;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(Number(found))
    }

    fn visit_str<E>(self, text: &str) -> Result<Number, E> {
        let word = text.split_ascii_whitespace().next().unwrap_or_default();
        let digits = match word.get(..2) {
            Some(prefix) if prefix.eq_ignore_ascii_case("as") => &word[2..],
            _ => word,
        };
        // `parse` would take a sign as well.
        let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
        Ok(Number(digits.parse().ok().filter(|_| is_number)))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Number, E> {
        Ok(Number(u32::try_from(number).ok()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Number, E> {
        Ok(Number(u32::try_from(number).ok()))
    }

    fn visit_u128<E>(self, number: u128) -> Result<Number, E> {
        Ok(Number(u32::try_from(number).ok()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Number, E> {
        // Only what is a whole number has the text of one.
        Ok(Number(number.to_string().parse().ok()))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Number, E> {
        Ok(Number(None))
    }

    fn visit_bytes<E>(self, _: &[u8]) -> Result<Number, E> {
        Ok(Number(None))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Number, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Number(None))
    }
}

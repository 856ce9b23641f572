//! Decoding of [`List`]. The derived code would keep a copy of thousands of rules to try each variant.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserialize, Deserializer, Error, IntoDeserializer, MapAccess, SeqAccess, Visitor};

use super::List;

impl<'de, T: Deserialize<'de>, const MIN: usize> Deserialize<'de> for List<T, MIN> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ListVisitor(PhantomData))
    }
}

struct ListVisitor<T, const MIN: usize>(PhantomData<T>);

/// Decodes a value that is not a list as the single item.
fn single_item<'de, T: Deserialize<'de>, const MIN: usize, E: Error>(
    value: impl IntoDeserializer<'de, E>,
) -> Result<List<T, MIN>, E> {
    T::deserialize(value.into_deserializer()).map(List::One)
}

impl<'de, T: Deserialize<'de>, const MIN: usize> Visitor<'de> for ListVisitor<T, MIN> {
    type Value = List<T, MIN>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list or a single item")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Self::Value, E> {
        single_item(value)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
        single_item(value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
        single_item(value)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Self::Value, E> {
        single_item(value)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Self::Value, E> {
        single_item(value)
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Self::Value, E> {
        single_item(value)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Self::Value, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(items)).map(List::Many)
    }

    fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(entries)).map(List::One)
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize as _;

    use super::*;

    #[derive(Debug, PartialEq, serde::Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Choice {
        Plain,
        Named(String),
    }

    #[derive(Debug, PartialEq, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Section {
        size: u8,
    }

    fn decode<T: serde::de::DeserializeOwned>(yaml: &str) -> Option<List<T, 1>> {
        List::deserialize(serde_yaml::from_str::<serde_yaml::Value>(yaml).unwrap()).ok()
    }

    fn one<T: serde::de::DeserializeOwned>(yaml: &str) -> Option<T> {
        decode(yaml).and_then(|list| if let List::One(item) = list { Some(item) } else { None })
    }

    fn many<T: serde::de::DeserializeOwned>(yaml: &str) -> Option<Vec<Option<T>>> {
        decode(yaml).and_then(|list| if let List::Many(items) = list { Some(items) } else { None })
    }

    #[test]
    fn value_that_is_not_a_list_is_the_single_item() {
        assert_eq!(one::<bool>("true"), Some(true));
        assert_eq!(one::<u8>("7"), Some(7));
        assert_eq!(one::<i8>("-7"), Some(-7));
        assert_eq!(one::<f64>("0.5"), Some(0.5));
        assert_eq!(one::<String>("a"), Some("a".to_owned()));
        assert_eq!(one::<Choice>("plain"), Some(Choice::Plain));
        assert_eq!(one::<Choice>("{ named: a }"), Some(Choice::Named("a".to_owned())));
        assert_eq!(one::<Section>("{ size: 7 }"), Some(Section { size: 7 }));
        assert_eq!(one::<Vec<u8>>("{ a: 1 }"), None);
    }

    #[test]
    fn items_of_a_list_keep_their_indices() {
        assert_eq!(many::<u8>("[1, ~, 3]"), Some(vec![Some(1), None, Some(3)]));
        assert_eq!(many::<Choice>("plain").map(|items| items.len()), None);
        assert_eq!(many::<Choice>("[plain, !named a]").map(|items| items.len()), Some(2));
        assert_eq!(many::<u8>("[]"), Some(Vec::new()));
    }

    #[test]
    fn invalid_item_is_an_error() {
        assert!(decode::<u8>("256").is_none() && decode::<u8>("[256]").is_none());
        assert!(decode::<u8>("~").is_none());
        assert!(decode::<Choice>("other").is_none());
        assert!(decode::<Section>("{ size: 7, other: 1 }").is_none());
    }
}

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
macro_rules! visit_item {
    ($($visit:ident: $given:ty,)+) => {$(
        fn $visit<E: Error>(self, value: $given) -> Result<Self::Value, E> {
            T::deserialize(value.into_deserializer()).map(List::One)
        }
    )+};
}

impl<'de, T: Deserialize<'de>, const MIN: usize> Visitor<'de> for ListVisitor<T, MIN> {
    type Value = List<T, MIN>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list or a single item")
    }

    visit_item! {
        visit_bool: bool,
        visit_i64: i64,
        visit_u64: u64,
        visit_f64: f64,
        visit_str: &str,
        visit_string: String,
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Self::Value, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(items)).map(List::Many)
    }

    fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(entries)).map(List::One)
    }
}

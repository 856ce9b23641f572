//! Numbers of texts: of strings, and of the elements of arrays.

use super::JsonReader;
use crate::fields::{FieldIndex, Value};

impl JsonReader {
    /// Counts the element that begins, if it is in an array whose texts are counted.
    pub(super) fn count_element(&mut self) {
        if let Some((_, number)) = self.open.last_mut().and_then(|array| array.count.as_mut()) {
            *number = number.saturating_add(1);
        }
    }

    /// Keeps the number of texts in an array that has ended.
    pub(super) fn keep_count(&mut self, count: Option<(FieldIndex, u32)>) {
        if let Some((field, number)) = count {
            self.keep_value(field, Value::count(number.max(1)));
        }
    }
}

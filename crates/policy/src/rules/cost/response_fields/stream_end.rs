//! The end of streams that state a cost.

use crate::identify::body::BodyField;
use weir_bodies::response::LatestValues;

/// How a stream shows that it has stated its cost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamEnd {
    /// Whether every complete stream has one of these ends. If not, a body that ends as it should is complete.
    pub is_known: bool,
    /// Whether a document `[DONE]` is one.
    pub is_done: bool,
    /// Fields that only the last documents have.
    pub last: Box<[BodyField]>,
    /// Fields of a document that says that the stream has failed.
    pub failed: Box<[BodyField]>,
}

impl StreamEnd {
    /// Whether a stream with these values has stated its cost. `has_ended`: its body has ended as it should.
    pub(super) fn has_arrived(&self, latest: &LatestValues, has_ended: bool) -> bool {
        let has = |fields: &[BodyField]| latest.last_of(fields.iter().map(|field| field.index)).is_some();
        let is_shown = self.is_done && latest.is_done() || has(&self.last);
        (is_shown || has_ended && !self.is_known) && !has(&self.failed)
    }
}

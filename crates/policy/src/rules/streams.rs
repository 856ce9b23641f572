//! Selects the limits inside the stream of an admitted request.

use std::num::NonZeroU32;

use smallvec::SmallVec;

use super::bound_rule::{ActionKind, KeyMemo};
use super::matcher::Match;
use super::pattern::Route;
use super::rule::Action;
use super::stream_limit::StreamMeasure;
use super::{RuleIndex, RuleSet};
use crate::identify::Attributes;
use weir_limiter::decision::Enforcement;
use weir_limiter::key::KeyHash;
use weir_limiter::{Check, LimitHandle};

/// A limit that applies to a stream, with the stream's key.
#[derive(Clone, Copy, Debug)]
pub struct SelectedStream {
    pub rule: RuleIndex,
    pub measure: StreamMeasure,
    /// Its cost is that of one message, or 0 for bytes.
    pub check: Check,
    /// Most units that pass at once.
    pub burst: NonZeroU32,
}

impl RuleSet {
    /// Whether any rule has limits inside streams.
    pub const fn has_streams(&self) -> bool {
        self.has_streams
    }

    /// Returns the limits inside the stream of an admitted request. `stream`: bits by which it differs from all others.
    pub fn select_streams(&self, request: &Attributes<'_>, stream: u128) -> SmallVec<[SelectedStream; 2]> {
        let candidates = self.index.candidates(request);
        let mut selected = SmallVec::new();
        if !self.all_limit && self.decided_without_limits(&candidates, request).is_some() {
            return selected;
        }
        let mut memo = KeyMemo::default();
        for index in self.of_kind(&candidates, ActionKind::Limit) {
            if !self.bound[index].streams.is_empty() {
                self.select_streams_of(index, request, stream, &mut memo, &mut selected);
            }
        }
        selected
    }

    /// Returns the settings of the limit with this handle; `None` if there is none.
    pub fn stream_settings(&self, handle: LimitHandle) -> Option<StreamSettings> {
        (0..self.bound.len()).map(RuleIndex).find_map(|rule| {
            let (limit, _) = self.stream_limits(rule).find(|(_, known)| *known == handle)?;
            let is_enforced = self.bound[rule.0].is_enforced;
            Some(StreamSettings { rule, measure: limit.measure, burst: limit.quota.burst(), is_enforced })
        })
    }

    /// Adds the limits of one rule, if it applies. An ambiguous request was rejected before.
    fn select_streams_of(
        &self,
        index: usize,
        request: &Attributes<'_>,
        stream: u128,
        memo: &mut KeyMemo,
        selected: &mut SmallVec<[SelectedStream; 2]>,
    ) {
        let (rule, bound) = (&self.rules[index], &self.bound[index]);
        let Action::Limit(limiting) = &rule.action else { return };
        let applies = if bound.applies_to_all { Match::Yes(Route("")) } else { rule.applies_to(request) };
        let (Match::Yes(route), Some(streams)) = (applies, &limiting.streams) else { return };
        let Ok(Some(key)) = self.key_of(bound, limiting, request, route, memo) else { return };
        let own_key = streams.is_per_stream.then(|| stream_key(stream));
        for (planned, limit) in bound.streams.iter().zip(&streams.limits) {
            let mut check = planned.template.check;
            check.key = own_key.unwrap_or(key.key);
            if !key.is_enforced {
                check.enforcement = Enforcement::Shadow;
            }
            let rule = RuleIndex(index);
            selected.push(SelectedStream { rule, measure: limit.measure, check, burst: limit.quota.burst() });
        }
    }
}

/// The settings of a limit inside streams in another configuration.
#[derive(Clone, Copy, Debug)]
pub struct StreamSettings {
    pub rule: RuleIndex,
    pub measure: StreamMeasure,
    pub burst: NonZeroU32,
    /// Whether the rule is enforced; `None` if that depends on the key.
    pub is_enforced: Option<bool>,
}

/// Returns the key of a stream that is counted apart. The bits are random, so they need no secret.
const fn stream_key(stream: u128) -> KeyHash {
    KeyHash::from_words([(stream >> 64) as u64, stream as u64])
}

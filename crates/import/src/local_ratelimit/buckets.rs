//! Rules for token buckets: that of a filter, for requests without a descriptor or for all, and those of descriptors.

use super::super::remark::{Effect, Remark};
use super::super::rule_text::{RuleText, list};
use super::super::scope::MatchField;
use super::super::token_bucket::ImportedBucket;
use super::super::tree::get;
use super::actions::Translation;
use super::filter::Filter;
use super::requests::Requests;
use super::rules::{FilterRuleWriter, Meaning};
use super::units::Unit;

/// Status of a rejection by a limit.
const LIMIT_STATUS: u16 = 429;
/// Status of a rejection by `action: deny`.
const DENY_STATUS: u16 = 403;

impl FilterRuleWriter<'_> {
    /// Adds the rules of the filter's own bucket, which share its counter.
    pub(super) fn add_bucket(
        &mut self,
        unit: &Unit<'_>,
        bucket: &ImportedBucket,
        meanings: &[Vec<Meaning<'_>>],
        place: Option<&Remark>,
    ) {
        let regions = match unit.filter.always_consumes {
            true => vec![unit.requests.clone()],
            false => requests_without_descriptor(unit, meanings),
        };
        if regions.is_empty() {
            const REASON: &str = "not used, as all requests match a descriptor";
            let node = get(unit.filter.config, "token_bucket");
            node.into_iter().for_each(|node| self.ledger.lose(node, Effect::None, REASON));
            return self.comment(Effect::None, format!("{}: {REASON}", unit.filter.name));
        }
        let mut rules = Vec::new();
        for requests in regions {
            let mut rule = self.start_rule(&unit.filter.name, place);
            self.set_requests(&mut rule, &requests);
            set_bucket(&mut rule, &unit.filter, &[], bucket, None, false);
            rules.push((rule, list(std::iter::empty::<&str>())));
        }
        self.share_counters(rules);
    }
}

/// Returns the requests that match no descriptor, in parts without a request in common.
fn requests_without_descriptor<'n>(unit: &Unit<'n>, meanings: &[Vec<Meaning<'n>>]) -> Vec<Requests<'n>> {
    let mut regions = vec![unit.requests.clone()];
    for meaning in meanings.iter().flatten() {
        let described = described_requests(&meaning.translation);
        regions = regions.iter().flat_map(|region| region.without(&described)).collect();
    }
    if meanings.iter().any(Vec::is_empty) {
        for region in &mut regions {
            region.add(Effect::Tighter, "requests that match a descriptor which is not translated count too");
        }
    }
    regions
}

/// Returns the requests that have a descriptor, including the presence of what it is counted by.
fn described_requests<'n>(translation: &Translation<'n>) -> Requests<'n> {
    let mut requests = translation.requests.clone();
    for part in &translation.key {
        let header = part.strip_prefix("{ header: ").and_then(|rest| rest.strip_suffix(" }"));
        if let Some(name) = header.filter(|name| !name.starts_with('"')) {
            let mut present = Requests::default();
            present.require(MatchField::Header(name.to_owned()), vec!["*".to_owned()]);
            requests = requests.and(&present).unwrap_or(requests);
        } else if part.starts_with("{ query:") {
            requests.add(
                Effect::Tighter,
                "requests with a parameter that a descriptor counts by are counted here, too",
            );
        }
    }
    requests
}

/// Sets the key and the bucket of each of its values.
pub(super) fn set_bucket(
    rule: &mut RuleText,
    filter: &Filter<'_>,
    key: &[String],
    bucket: &ImportedBucket,
    cost: Option<&str>,
    is_shadow: bool,
) {
    let status = match bucket {
        ImportedBucket::Empty if is_shadow || !filter.is_enforced() => {
            return rule.add_comment("no tokens: Envoy counts every request, and rejects none");
        }
        ImportedBucket::Empty => {
            rule.add_comment("no tokens: every request is rejected");
            if !filter.is_enforced_for_all() {
                rule.add_remark(Remark::new(
                    Effect::Tighter,
                    "a share of requests is rejected in Envoy, and all here",
                ));
            }
            rule.set("action", "deny");
            DENY_STATUS
        }
        ImportedBucket::Rate { limit, capacity, is_burst } => {
            if !key.is_empty() {
                rule.set("key", list(key));
            }
            rule.set("limit", limit.clone());
            if *is_burst {
                rule.set("burst", capacity.to_string());
            }
            rule.set("algorithm", "token_bucket");
            cost.into_iter().for_each(|cost| rule.set("cost", cost));
            filter.set_enforcement(rule, is_shadow);
            LIMIT_STATUS
        }
    };
    // A rule that matches descriptors has no response of its own.
    if rule.field("domain").is_none() {
        filter.set_response(rule, status);
    }
}

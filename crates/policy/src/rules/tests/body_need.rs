//! A body is held only for rules that depend on it.

use std::sync::Arc;

use weir_bodies::fields::{FieldMask, FieldName};

use super::*;
use crate::identify::body::{BodyField, RequestFields};
use crate::rules::matcher::Condition;
use crate::rules::pattern::HeaderPattern;

/// The field of a body at this position.
fn field(index: usize) -> Attribute {
    Attribute::Body(BodyField { field: FieldName::Form(Arc::from(format!("f{index}"))), index })
}

/// Makes the rule apply only if this field is present.
fn if_present(mut rule: Rule, index: usize) -> Rule {
    let condition = Condition { attribute: field(index), patterns: [HeaderPattern::Present].into() };
    rule.matcher.conditions = [condition].into();
    rule
}

fn needed(rules: Vec<Rule>) -> FieldMask {
    let (uri, headers, settings) = (Uri::from_static("/a"), HeaderMap::new(), IdentifySettings::default());
    let peer = [192, 0, 2, 1].into();
    let request = identify(&Method::POST, &uri, &headers, peer, &settings, START).unwrap();
    request.body.set(RequestFields::Unread);
    bound(rules).rules.body_fields_needed(&request)
}

fn by_field(index: usize) -> Rule {
    limit("by-field", &["/*"], &[field(index)], &[10])
}

#[test]
fn rules_that_may_apply_need_their_fields() {
    assert_eq!(needed(vec![by_field(0), by_field(1)]), FieldMask::of(0) | FieldMask::of(1));
    assert_eq!(needed(vec![limit("elsewhere", &["/b"], &[field(0)], &[10])]), FieldMask::default());
    assert_eq!(needed(vec![if_present(by_field(0), 1)]), FieldMask::of(0) | FieldMask::of(1));
}

#[test]
fn exempt_request_needs_no_field() {
    assert_eq!(needed(vec![by_field(0), allow_rule("/a")]), FieldMask::default());
    assert_eq!(
        needed(vec![by_field(0), if_present(deny_rule("/a"), 1), allow_rule("/a")]),
        FieldMask::default()
    );
    assert_eq!(needed(vec![by_field(0), allow_rule("/b")]), FieldMask::of(0));
    let unclear = if_present(allow_rule("/a"), 1);
    assert_eq!(needed(vec![by_field(0), unclear]), FieldMask::of(0) | FieldMask::of(1));
}

#[test]
fn denied_request_needs_what_may_exempt_it() {
    assert_eq!(needed(vec![by_field(0), deny_rule("/a")]), FieldMask::default());
    let unclear = || if_present(allow_rule("/a"), 1);
    assert_eq!(needed(vec![by_field(0), deny_rule("/a"), unclear()]), FieldMask::of(1));
    assert_eq!(
        needed(vec![by_field(0), if_present(deny_rule("/a"), 2)]),
        FieldMask::of(0) | FieldMask::of(2)
    );
}

#[test]
fn rule_that_is_skipped_without_its_key_needs_no_field() {
    let key = [field(0), Attribute::Header(API_KEY)];
    let with = |on_missing| needed(vec![rule("keyed", &["/*"], limiting(&key, on_missing, &[10]))]);
    assert_eq!(with(OnMissing::Skip), FieldMask::default());
    assert_eq!(with(OnMissing::Shared), FieldMask::of(0));
    assert_eq!(with(OnMissing::Deny), FieldMask::of(0));
}

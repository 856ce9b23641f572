use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};

use super::*;
use crate::identify::{IdentifySettings, identify};
use weir_limiter::timestamp::Timestamp;

const KEY: HeaderName = HeaderName::from_static("x-api-key");

fn members(all: &[(&str, &str)]) -> Result<Members, Vec<DuplicateMember>> {
    let mut builder = MembersBuilder::new([3, 5]);
    all.iter().for_each(|(member, plan)| builder.add(member, plan, None).unwrap());
    builder.close()
}

fn plans(all: &[(&str, &str)], default: Option<&str>) -> Plans {
    let members = Arc::new(members(all).unwrap());
    Plans { attribute: Attribute::Header(KEY), members, default: default.map(Into::into) }
}

/// Returns the plan of a request with these lines of the header.
fn plan_of<'p>(plans: &'p Plans, lines: &[&str]) -> Option<&'p str> {
    try_plan_of(plans, lines).unwrap()
}

fn try_plan_of<'p>(plans: &'p Plans, lines: &[&str]) -> Result<Option<&'p str>, Ambiguity> {
    let mut headers = HeaderMap::new();
    for line in lines {
        headers.append(KEY, HeaderValue::from_str(line).unwrap());
    }
    let (uri, settings) = (Uri::from_static("/"), IdentifySettings::default());
    let peer = [192, 0, 2, 1].into();
    let request = identify(&Method::GET, &uri, &headers, peer, &settings, Timestamp::EPOCH).unwrap();
    let first = plans.plan_of(&request);
    assert_eq!(plans.plan_of(&request), first, "a second call returns the same plan");
    first
}

#[test]
fn plan_members_have_their_plan_and_others_the_default() {
    let plans = plans(&[("a", "pro"), ("b", "gold"), ("c", "pro"), ("", "empty")], Some("free"));
    for (key, plan) in
        [("a", "pro"), ("b", "gold"), ("c", "pro"), ("", "empty"), ("A", "free"), ("ab", "free")]
    {
        assert_eq!(plan_of(&plans, &[key]), Some(plan), "{key}");
    }
    assert_eq!(plan_of(&plans, &[]), Some("free"));
}

#[test]
fn several_plan_keys_are_ambiguous() {
    for default in [None, Some("free")] {
        let plans = plans(&[("a", "slow"), ("b", "pro"), ("a, b", "pro")], default);
        for several in [["a", "b"], ["b", "a"], ["a", "unknown"]] {
            assert_eq!(try_plan_of(&plans, &several), Err(Ambiguity::Repeated));
        }
        assert_eq!(plan_of(&plans, &["a", "a"]), Some("slow"));
    }
}

#[test]
fn only_members_have_a_plan_without_a_default() {
    let plans = plans(&[("a", "pro")], None);
    assert_eq!((plan_of(&plans, &["a"]), plan_of(&plans, &["b"])), (Some("pro"), None));
    assert_eq!(plan_of(&plans, &[]), None);
}

#[test]
fn duplicate_members_are_reported_with_both_positions() {
    let twice =
        members(&[("a", "x"), ("b", "x"), ("a", "y"), ("c", "x"), ("b", "x"), ("a", "x")]).unwrap_err();
    let expected = [(0, 2), (1, 4), (2, 5)].map(|(first, again)| DuplicateMember { again, first });
    assert_eq!(twice, expected);
}

#[test]
fn plan_count_is_bounded_and_members_are_counted() {
    let mut builder = MembersBuilder::new([3, 5]);
    for number in 0..MAX_PLANS {
        builder.add(&number.to_string(), &format!("plan-{number}"), None).unwrap();
    }
    assert_eq!(builder.add("more", "one-too-many", None), Err(TooManyPlans));
    builder.add("more", "plan-7", None).unwrap();
    let members = builder.close().unwrap();
    assert_eq!(members.counts().nth(7), Some(("plan-7", 2)));
    assert_eq!(members.counts().map(|(_, count)| count).sum::<usize>(), MAX_PLANS + 1);
}

#[test]
fn debug_output_of_plans_hides_members() {
    let plans = plans(&[("sk_live_secret", "pro")], None);
    assert!(!format!("{plans:?}").contains("secret"), "{plans:?}");
}

use std::num::NonZeroU64;

use super::*;
use crate::identify::body::BodyField;
use crate::rules::pattern::HeaderPattern;
use weir_bodies::fields::FieldName;
use weir_bodies::response::{ResponseFields, ResponseReader};
use weir_http::headers::RawHeaders;

fn header_cost(name: &'static str, default_units: u32, max_units: u32) -> HeaderCost {
    HeaderCost { name: HeaderName::from_static(name), default: default_units, max_units: Some(max_units) }
}

fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
    let line = |(name, value): &(&'static str, &str)| (HeaderName::from_static(name), value.parse().unwrap());
    lines.iter().map(line).collect()
}

fn with_cost(cost: Cost) -> CostModel {
    CostModel { cost, ..CostModel::fixed(1) }
}

fn counting_statuses(counts: RangeInclusive<u16>) -> CostModel {
    let statuses = Some(Statuses::from_iter([counts]));
    CostModel {
        counts: Some(ResponseCondition { statuses, ..ResponseCondition::default() }),
        ..CostModel::fixed(3)
    }
}

fn charge_for_call(tariff: &CostModel, status: u16, headers: &HeaderMap, call: CallStatus) -> FinalCharge {
    let status = StatusCode::from_u16(status).unwrap();
    let mut raw = RawHeaders::default();
    headers.iter().for_each(|(name, value)| raw.push(name.as_str().as_bytes(), value.as_bytes()));
    let due =
        |headers| tariff.final_charge(&RequestEnd::Responded { status, headers: &headers }, call, false);
    let charged = due(raw.into());
    assert_eq!(charged, due(headers.clone().into()), "raw headers and a map give the same result");
    charged
}

fn charge_for_response(tariff: &CostModel, status: u16, lines: &[(&'static str, &str)]) -> FinalCharge {
    let headers = headers(lines);
    charge_for_call(tariff, status, &headers, CallStatus::None)
}

fn charge_for_failure(tariff: &CostModel, status: u16, failure: UpstreamFailure) -> FinalCharge {
    tariff.final_charge(
        &RequestEnd::Failed { status: StatusCode::from_u16(status).unwrap(), failure },
        CallStatus::None,
        false,
    )
}

#[test]
fn header_cost_is_at_least_one_unit() {
    let tariff = with_cost(Cost::Header(header_cost("x-cost", 5, 100)));
    for (value, units) in [
        ("7", 7),
        ("0", 1),
        ("00", 1),
        ("", 5),
        (" , ", 5),
        ("3,", 3),
        ("49.99", 50),
        ("49.00", 49),
        ("0.001", 1),
        ("-3", 100),
        ("+3", 100),
        ("1e9", 100),
        ("0x10", 100),
        (".5", 100),
        ("5.", 100),
        ("1.2.3", 100),
        ("1.-1", 100),
        ("101", 100),
        ("99999999999999999999999999", 100),
        ("3, 8", 8),
        ("3, cheap", 100),
        (" 12 ", 12),
    ] {
        assert_eq!(
            tariff.units_to_reserve(&headers(&[("x-cost", value)]), RequestFields::Absent, None),
            units,
            "{value:?}"
        );
    }
    assert_eq!(tariff.units_to_reserve(&headers(&[]), RequestFields::Absent, None), 5);
    assert_eq!(
        tariff.units_to_reserve(
            &headers(&[("x-cost", "2"), ("x-cost", "9"), ("x-cost", "4")]),
            RequestFields::Absent,
            None
        ),
        9
    );
}

#[test]
fn header_cost_saturates() {
    let tariff = with_cost(Cost::Header(header_cost("x-cost", 1, u32::MAX)));
    assert_eq!(
        tariff.units_to_reserve(&headers(&[("x-cost", "4294967296")]), RequestFields::Absent, None),
        u32::MAX
    );
    assert_eq!(
        tariff.units_to_reserve(&headers(&[("x-cost", "4294967295.1")]), RequestFields::Absent, None),
        u32::MAX
    );
}

#[test]
fn request_bytes_cost_rounds_up_to_full_units() {
    let tariff = with_cost(Cost::RequestBytes(ByteCost {
        bytes_per_unit: NonZeroU64::new(1024).unwrap(),
        max_units: Some(1000),
    }));
    for (length, units) in
        [("0", 1), ("1", 1), ("1024", 1), ("1025", 2), ("18446744073709551615", 1000), ("x", 1)]
    {
        assert_eq!(
            tariff.units_to_reserve(&headers(&[("content-length", length)]), RequestFields::Absent, None),
            units,
            "{length}"
        );
    }
    assert_eq!(tariff.units_to_reserve(&headers(&[]), RequestFields::Absent, None), 1);
    assert_eq!(
        tariff.units_to_reserve(&headers(&[("transfer-encoding", "chunked")]), RequestFields::Absent, None),
        1
    );
    assert_eq!(tariff.units_for_bytes(10_000, 0), Some(10));
    assert_eq!(tariff.units_for_bytes(0, 10_000), Some(1));
}

#[test]
fn only_counted_response_statuses_are_charged() {
    let tariff = counting_statuses(401..=403);
    assert_eq!(tariff.charge_timing(), ChargeTiming::OnResponse);
    assert_eq!(charge_for_response(&tariff, 401, &[]), FinalCharge::AsReserved);
    assert_eq!(charge_for_response(&tariff, 403, &[]), FinalCharge::AsReserved);
    assert_eq!(charge_for_response(&tariff, 200, &[]), FinalCharge::Nothing);
    assert_eq!(charge_for_failure(&tariff, 503, UpstreamFailure::Connect), FinalCharge::Nothing);
    assert_eq!(tariff.final_charge(&RequestEnd::Abandoned, CallStatus::None, false), FinalCharge::AsReserved);
}

#[test]
fn response_header_sets_the_cost() {
    let tariff = with_cost(Cost::ResponseHeader(header_cost("x-tokens", 10, 500)));
    assert_eq!(
        (tariff.charge_timing(), tariff.units_to_reserve(&HeaderMap::new(), RequestFields::Absent, None)),
        (ChargeTiming::OnResponse, 10)
    );
    assert_eq!(charge_for_response(&tariff, 200, &[("x-tokens", "42")]), FinalCharge::Units(42));
    assert_eq!(charge_for_response(&tariff, 200, &[("x-tokens", "0")]), FinalCharge::Units(0));
    assert_eq!(charge_for_response(&tariff, 200, &[("x-tokens", "9999")]), FinalCharge::Units(500));
    assert_eq!(charge_for_response(&tariff, 200, &[("x-tokens", "many")]), FinalCharge::Units(500));
    assert_eq!(charge_for_response(&tariff, 200, &[("x-tokens", "41.2")]), FinalCharge::Units(42));
    assert_eq!(charge_for_response(&tariff, 200, &[("x-tokens", "")]), FinalCharge::Units(10));
    assert_eq!(charge_for_response(&tariff, 200, &[]), FinalCharge::Units(10));
    assert_eq!(charge_for_failure(&tariff, 502, UpstreamFailure::Malformed), FinalCharge::AsReserved);
}

#[test]
fn refund_applies_only_to_configured_statuses_and_failures() {
    let refunds = Refunds {
        statuses: Statuses::from_iter([500..=599]),
        timeout: true,
        connect_failure: false,
        reset: false,
        ..Refunds::default()
    };
    let tariff = CostModel { refunds: refunds.clone(), ..CostModel::fixed(1) };
    assert_eq!(tariff.charge_timing(), ChargeTiming::OnArrival);
    assert_eq!(charge_for_response(&tariff, 500, &[]), FinalCharge::Nothing);
    assert_eq!(charge_for_response(&tariff, 404, &[]), FinalCharge::AsReserved);
    assert_eq!(
        charge_for_failure(&tariff, 503, UpstreamFailure::Connect),
        FinalCharge::Nothing,
        "a local 503 is a 5xx"
    );
    assert_eq!(tariff.final_charge(&RequestEnd::Abandoned, CallStatus::None, false), FinalCharge::AsReserved);
    let tariff = CostModel { refunds: Refunds { statuses: Statuses::default(), ..refunds }, ..tariff };
    assert_eq!(charge_for_failure(&tariff, 504, UpstreamFailure::Timeout), FinalCharge::Nothing);
    assert_eq!(charge_for_failure(&tariff, 503, UpstreamFailure::Connect), FinalCharge::AsReserved);
    assert_eq!(charge_for_failure(&tariff, 503, UpstreamFailure::Reset), FinalCharge::AsReserved);
}

#[test]
fn cost_known_on_arrival_needs_no_settlement() {
    assert!(!CostModel::fixed(1).needs_settlement());
    assert!(!with_cost(Cost::Header(header_cost("x-cost", 1, 9))).needs_settlement());
    assert!(with_cost(Cost::ResponseHeader(header_cost("x-cost", 1, 9))).needs_settlement());
    assert!(counting_statuses(401..=401).needs_settlement());
}

#[test]
fn debt_is_unlimited_only_with_a_maximum_cost() {
    let header_cost_up_to =
        |most| Cost::ResponseHeader(HeaderCost { max_units: most, ..header_cost("x-cost", 1, 9) });
    let bytes = |most| Cost::RequestBytes(ByteCost { bytes_per_unit: NonZeroU64::MIN, max_units: most });
    for (cost, debt) in [
        (header_cost_up_to(None), DebtLimit::OneBurst),
        (header_cost_up_to(Some(9)), DebtLimit::Unlimited),
        (bytes(None), DebtLimit::OneBurst),
        (bytes(Some(9)), DebtLimit::Unlimited),
        (Cost::Fixed(3), DebtLimit::Unlimited),
    ] {
        assert_eq!(with_cost(cost.clone()).debt_limit(), debt, "{cost:?}");
    }
}

fn pattern(text: &str) -> HeaderPattern {
    HeaderPattern::parse(text).unwrap()
}

fn codes(codes: &[u64]) -> GrpcStatuses {
    codes.iter().filter_map(|code| GrpcStatus::from_code(*code)).collect()
}

#[test]
fn response_condition_requires_every_field_and_any_list_item() {
    let location = HeaderName::from_static("location");
    let counted = ResponseCondition {
        statuses: Some(Statuses::from_iter([302..=303])),
        headers: [(location, [pattern("~^/login"), pattern("/signin")].into())].into(),
        calls: None,
    };
    let tariff = CostModel { counts: Some(counted), ..CostModel::fixed(1) };
    assert_eq!((tariff.charge_timing(), tariff.needs_settlement()), (ChargeTiming::OnResponse, true));
    for (status, lines, expected) in [
        (302, &[("location", "/login?failed=1")][..], FinalCharge::AsReserved),
        (303, &[("location", "/signin")], FinalCharge::AsReserved),
        (302, &[("location", "/home"), ("location", "/signin")], FinalCharge::AsReserved),
        (302, &[("location", "/home")], FinalCharge::Nothing),
        (302, &[], FinalCharge::Nothing),
        (200, &[("location", "/login")], FinalCharge::Nothing),
    ] {
        assert_eq!(charge_for_response(&tariff, status, lines), expected, "{status} {lines:?}");
    }
    // A local reply in place of the upstream's response has none of its headers.
    assert_eq!(charge_for_failure(&tariff, 302, UpstreamFailure::Timeout), FinalCharge::Nothing);
}

#[test]
fn absent_header_condition_holds_for_local_replies() {
    let headers = [(HeaderName::from_static("x-login"), [pattern("!present")].into())].into();
    let tariff = CostModel {
        counts: Some(ResponseCondition { headers, ..ResponseCondition::default() }),
        ..CostModel::fixed(1)
    };
    assert_eq!(charge_for_response(&tariff, 200, &[("x-login", "ok")]), FinalCharge::Nothing);
    assert_eq!(charge_for_response(&tariff, 200, &[]), FinalCharge::AsReserved);
    assert_eq!(charge_for_failure(&tariff, 503, UpstreamFailure::Connect), FinalCharge::AsReserved);
}

#[test]
fn grpc_status_decides_the_charge_once_known() {
    let counts = ResponseCondition { calls: Some(codes(&[16, 7])), ..ResponseCondition::default() };
    let refunds = Refunds { calls: codes(&[14]), ..Refunds::default() };
    let counting = CostModel { counts: Some(counts), ..CostModel::fixed(1) };
    let refunding = CostModel { refunds, ..CostModel::fixed(1) };
    let none = HeaderMap::new();
    let due = |tariff: &CostModel, call| charge_for_call(tariff, 200, &none, call);
    let known = |code| CallStatus::Known(GrpcStatus::from_code(code).unwrap());
    assert!(counting.counts_calls() && !refunding.counts_calls() && refunding.reads_calls());
    // While the status is awaited, the request is treated as if it will be charged.
    assert_eq!(
        (due(&counting, CallStatus::Awaited), due(&refunding, CallStatus::Awaited)),
        (FinalCharge::AsReserved, FinalCharge::AsReserved)
    );
    assert_eq!(
        (due(&counting, known(16)), due(&refunding, known(16))),
        (FinalCharge::AsReserved, FinalCharge::AsReserved)
    );
    assert_eq!(
        (due(&counting, known(14)), due(&refunding, known(14))),
        (FinalCharge::Nothing, FinalCharge::Nothing)
    );
    assert_eq!(
        (due(&counting, CallStatus::None), due(&refunding, CallStatus::None)),
        (FinalCharge::Nothing, FinalCharge::AsReserved)
    );
    assert_eq!(
        counting.final_charge_by_call(GrpcStatus::from_code(7), FinalCharge::AsReserved),
        FinalCharge::AsReserved
    );
}

#[test]
fn request_whose_response_is_not_known_costs_the_maximum() {
    let stated = |max_units| CostModel {
        cost: Cost::ResponseHeader(HeaderCost {
            name: HeaderName::from_static("x-tokens"),
            default: 5,
            max_units,
        }),
        ..CostModel::fixed(1)
    };
    let charge = |model: &CostModel, end| model.final_charge(&end, CallStatus::None, false);
    assert_eq!(charge(&stated(Some(70)), RequestEnd::Unanswered), FinalCharge::Units(70));
    assert_eq!(charge(&stated(None), RequestEnd::Unanswered), FinalCharge::AsReserved);
    assert_eq!(charge(&stated(Some(70)), RequestEnd::Abandoned), FinalCharge::AsReserved, "it was not sent");
    assert_eq!(charge(&CostModel::fixed(3), RequestEnd::Unanswered), FinalCharge::AsReserved);
}

/// Returns a cost of the paths `a` and `b`, or `c` in place of `b`, with these weights.
fn stated_cost(weights: [i64; 2], estimate: CostEstimate, max_units: Option<u32>) -> ResponseFieldsCost {
    let field = |name: &str, index| BodyField {
        field: FieldName::Json(std::sync::Arc::new(name.parse().expect("a path"))),
        index,
    };
    let terms = [
        WeightedFields { fields: [field("a", 0)].into(), weight: weights[0] },
        WeightedFields { fields: [field("b", 1), field("c", 2)].into(), weight: weights[1] },
    ];
    let stream_end = StreamEnd::default();
    ResponseFieldsCost { terms: terms.into(), estimate, max_units, stream_end, injects_usage: None }
}

/// Returns what `cost` is by a stream of these documents.
fn units_of(cost: &ResponseFieldsCost, documents: &[&str]) -> Option<u32> {
    let names = cost.terms.iter().flat_map(|term| &term.fields).map(|field| field.field.clone());
    let fields = std::sync::Arc::new(ResponseFields::new(names, None));
    let mut reader = ResponseReader::new(&fields, Some(b"application/x-ndjson"), None).expect("lines");
    documents.iter().for_each(|document| reader.read(format!("{document}\n").as_bytes()));
    cost.units(reader.end().expect("readable"))
}

#[test]
fn weighted_numbers_of_a_response_are_added() {
    let cost = stated_cost([1000, 4000], CostEstimate::fixed(1), Some(500));
    assert_eq!(units_of(&cost, &[r#"{"a":10,"b":20}"#]), Some(90));
    assert_eq!(units_of(&cost, &[r#"{"a":10,"b":1}"#, r#"{"c":20}"#]), Some(90), "the last of `b` and `c`");
    assert_eq!(units_of(&cost, &[r#"{"b":5}"#]), Some(20), "what is absent is zero");
    assert_eq!(units_of(&cost, &[r#"{"d":5}"#, "{}"]), None);
    assert_eq!(units_of(&cost, &[r#"{"a":0}"#]), Some(0));
    for more in ["501", "1e300", "\"many\"", "-1", "99999999999999999999999999"] {
        assert_eq!(units_of(&cost, &[&format!("{{\"a\":{more}}}")]), Some(500), "{more}");
    }
    let discount = stated_cost([1000, -900], CostEstimate::fixed(1), None);
    assert_eq!(units_of(&discount, &[r#"{"a":100,"b":50}"#]), Some(55));
    assert_eq!(units_of(&discount, &[r#"{"a":10,"b":50}"#]), Some(0));
    let tenth = stated_cost([100, 100], CostEstimate::fixed(1), None);
    assert_eq!(units_of(&tenth, &[r#"{"a":30}"#]), Some(3), "no rounding of binary fractions");
    assert_eq!(units_of(&tenth, &[r#"{"a":31}"#]), Some(4), "rounded up");
}

#[test]
fn reservation_grows_with_the_request() {
    let estimate = CostEstimate { bytes_per_unit: NonZeroU64::new(4), ..CostEstimate::fixed(100) };
    let reserve = |max_units, lines: &[(&'static str, &str)], size| {
        let cost = Cost::ResponseFields(Box::new(stated_cost([1000, 1000], estimate.clone(), max_units)));
        with_cost(cost).units_to_reserve(&headers(lines), RequestFields::Absent, size)
    };
    assert_eq!(reserve(Some(5000), &[("content-length", "401")], None), 201);
    assert_eq!(reserve(Some(5000), &[("content-length", "99999")], None), 5000);
    assert_eq!(reserve(Some(5000), &[], None), 5000, "an upload of unknown length");
    assert_eq!(reserve(None, &[], None), 100);
    let compressed = [("content-length", "40"), ("content-encoding", "gzip")];
    assert_eq!(reserve(Some(5000), &compressed, None), 5000);
    assert_eq!(reserve(Some(5000), &compressed, Some(400)), 200);
}

use super::*;
use crate::headers::RawHeaders;
use crate::rules::pattern::HeaderPattern;

fn told(name: &'static str, otherwise: u32, most: u32) -> HeaderCost {
    HeaderCost { name: HeaderName::from_static(name), default: otherwise, max_units: Some(most) }
}

fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
    let line = |(name, value): &(&'static str, &str)| (HeaderName::from_static(name), value.parse().unwrap());
    lines.iter().map(line).collect()
}

fn priced(cost: Cost) -> CostModel {
    CostModel { cost, ..CostModel::fixed(1) }
}

fn counting(counts: RangeInclusive<u16>) -> CostModel {
    let statuses = Some(Statuses::from_iter([counts]));
    CostModel {
        counts: Some(ResponseCondition { statuses, ..ResponseCondition::default() }),
        ..CostModel::fixed(3)
    }
}

fn answered_call(tariff: &CostModel, status: u16, headers: &HeaderMap, call: CallStatus) -> FinalCharge {
    let status = StatusCode::from_u16(status).unwrap();
    let mut raw = RawHeaders::default();
    headers.iter().for_each(|(name, value)| raw.push(name.as_str().as_bytes(), value.as_bytes()));
    let due = |headers| tariff.final_charge(&RequestEnd::Responded { status, headers: &headers }, call);
    let charged = due(raw.into());
    assert_eq!(charged, due(headers.clone().into()), "raw headers and a map give the same result");
    charged
}

fn answered(tariff: &CostModel, status: u16, lines: &[(&'static str, &str)]) -> FinalCharge {
    let headers = headers(lines);
    answered_call(tariff, status, &headers, CallStatus::None)
}

fn failed(tariff: &CostModel, status: u16, failure: UpstreamFailure) -> FinalCharge {
    tariff.final_charge(
        &RequestEnd::Failed { status: StatusCode::from_u16(status).unwrap(), failure },
        CallStatus::None,
    )
}

#[test]
fn no_header_makes_a_request_cheaper_than_one_unit() {
    let tariff = priced(Cost::Header(told("x-cost", 5, 100)));
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
        assert_eq!(tariff.units_to_reserve(&headers(&[("x-cost", value)])), units, "{value:?}");
    }
    assert_eq!(tariff.units_to_reserve(&headers(&[])), 5);
    assert_eq!(tariff.units_to_reserve(&headers(&[("x-cost", "2"), ("x-cost", "9"), ("x-cost", "4")])), 9);
}

#[test]
fn a_number_beyond_counting_saturates() {
    let tariff = priced(Cost::Header(told("x-cost", 1, u32::MAX)));
    assert_eq!(tariff.units_to_reserve(&headers(&[("x-cost", "4294967296")])), u32::MAX);
    assert_eq!(tariff.units_to_reserve(&headers(&[("x-cost", "4294967295.1")])), u32::MAX);
}

#[test]
fn a_body_costs_by_every_unit_that_is_begun() {
    let tariff = priced(Cost::RequestBytes(ByteCost {
        bytes_per_unit: NonZeroU64::new(1024).unwrap(),
        max_units: Some(1000),
    }));
    for (length, units) in
        [("0", 1), ("1", 1), ("1024", 1), ("1025", 2), ("18446744073709551615", 1000), ("x", 1)]
    {
        assert_eq!(tariff.units_to_reserve(&headers(&[("content-length", length)])), units, "{length}");
    }
    assert_eq!(tariff.units_to_reserve(&headers(&[])), 1);
    assert_eq!(tariff.units_to_reserve(&headers(&[("transfer-encoding", "chunked")])), 1);
    assert_eq!(tariff.units_for_bytes(10_000, 0), Some(10));
    assert_eq!(tariff.units_for_bytes(0, 10_000), Some(1));
}

#[test]
fn only_answers_that_count_are_charged() {
    let tariff = counting(401..=403);
    assert_eq!(tariff.charge_timing(), ChargeTiming::OnResponse);
    assert_eq!(answered(&tariff, 401, &[]), FinalCharge::AsReserved);
    assert_eq!(answered(&tariff, 403, &[]), FinalCharge::AsReserved);
    assert_eq!(answered(&tariff, 200, &[]), FinalCharge::Nothing);
    assert_eq!(failed(&tariff, 503, UpstreamFailure::Connect), FinalCharge::Nothing);
    assert_eq!(tariff.final_charge(&RequestEnd::Abandoned, CallStatus::None), FinalCharge::AsReserved);
}

#[test]
fn the_answer_says_what_it_cost() {
    let tariff = priced(Cost::ResponseHeader(told("x-tokens", 10, 500)));
    assert_eq!(
        (tariff.charge_timing(), tariff.units_to_reserve(&HeaderMap::new())),
        (ChargeTiming::OnResponse, 10)
    );
    assert_eq!(answered(&tariff, 200, &[("x-tokens", "42")]), FinalCharge::Units(42));
    assert_eq!(answered(&tariff, 200, &[("x-tokens", "0")]), FinalCharge::Units(0));
    assert_eq!(answered(&tariff, 200, &[("x-tokens", "9999")]), FinalCharge::Units(500));
    assert_eq!(answered(&tariff, 200, &[("x-tokens", "many")]), FinalCharge::Units(500));
    assert_eq!(answered(&tariff, 200, &[("x-tokens", "41.2")]), FinalCharge::Units(42));
    assert_eq!(answered(&tariff, 200, &[("x-tokens", "")]), FinalCharge::Units(10));
    assert_eq!(answered(&tariff, 200, &[]), FinalCharge::Units(10));
    assert_eq!(failed(&tariff, 502, UpstreamFailure::Malformed), FinalCharge::AsReserved);
}

#[test]
fn a_refund_covers_what_it_names_and_nothing_else() {
    let refunds = Refunds {
        statuses: Statuses::from_iter([500..=599]),
        timeout: true,
        connect_failure: false,
        reset: false,
        ..Refunds::default()
    };
    let tariff = CostModel { refunds: refunds.clone(), ..CostModel::fixed(1) };
    assert_eq!(tariff.charge_timing(), ChargeTiming::OnArrival);
    assert_eq!(answered(&tariff, 500, &[]), FinalCharge::Nothing);
    assert_eq!(answered(&tariff, 404, &[]), FinalCharge::AsReserved);
    assert_eq!(failed(&tariff, 503, UpstreamFailure::Connect), FinalCharge::Nothing, "a local 503 is a 5xx");
    assert_eq!(tariff.final_charge(&RequestEnd::Abandoned, CallStatus::None), FinalCharge::AsReserved);
    let tariff = CostModel { refunds: Refunds { statuses: Statuses::default(), ..refunds }, ..tariff };
    assert_eq!(failed(&tariff, 504, UpstreamFailure::Timeout), FinalCharge::Nothing);
    assert_eq!(failed(&tariff, 503, UpstreamFailure::Connect), FinalCharge::AsReserved);
    assert_eq!(failed(&tariff, 503, UpstreamFailure::Reset), FinalCharge::AsReserved);
}

#[test]
fn what_is_known_on_arrival_is_never_settled() {
    assert!(!CostModel::fixed(1).needs_settlement());
    assert!(!priced(Cost::Header(told("x-cost", 1, 9))).needs_settlement());
    assert!(priced(Cost::ResponseHeader(told("x-cost", 1, 9))).needs_settlement());
    assert!(counting(401..=401).needs_settlement());
}

#[test]
fn only_a_rule_that_says_how_much_one_request_may_cost_lets_it_owe_that() {
    let told = |most| Cost::ResponseHeader(HeaderCost { max_units: most, ..told("x-cost", 1, 9) });
    let bytes = |most| Cost::RequestBytes(ByteCost { bytes_per_unit: NonZeroU64::MIN, max_units: most });
    for (cost, debt) in [
        (told(None), DebtLimit::OneBurst),
        (told(Some(9)), DebtLimit::Unlimited),
        (bytes(None), DebtLimit::OneBurst),
        (bytes(Some(9)), DebtLimit::Unlimited),
        (Cost::Fixed(3), DebtLimit::Unlimited),
    ] {
        assert_eq!(priced(cost.clone()).debt_limit(), debt, "{cost:?}");
    }
}

fn pattern(text: &str) -> HeaderPattern {
    HeaderPattern::parse(text).unwrap()
}

fn codes(codes: &[u64]) -> GrpcStatuses {
    codes.iter().filter_map(|code| GrpcStatus::from_code(*code)).collect()
}

#[test]
fn all_fields_of_count_must_hold_and_any_item_of_a_list() {
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
        assert_eq!(answered(&tariff, status, lines), expected, "{status} {lines:?}");
    }
    // A local reply in place of the upstream's response has none of its headers.
    assert_eq!(failed(&tariff, 302, UpstreamFailure::Timeout), FinalCharge::Nothing);
}

#[test]
fn a_header_that_must_be_absent_is_absent_from_a_local_reply() {
    let headers = [(HeaderName::from_static("x-login"), [pattern("!present")].into())].into();
    let tariff = CostModel {
        counts: Some(ResponseCondition { headers, ..ResponseCondition::default() }),
        ..CostModel::fixed(1)
    };
    assert_eq!(answered(&tariff, 200, &[("x-login", "ok")]), FinalCharge::Nothing);
    assert_eq!(answered(&tariff, 200, &[]), FinalCharge::AsReserved);
    assert_eq!(failed(&tariff, 503, UpstreamFailure::Connect), FinalCharge::AsReserved);
}

#[test]
fn the_status_of_a_call_decides_when_it_is_known() {
    let counts = ResponseCondition { calls: Some(codes(&[16, 7])), ..ResponseCondition::default() };
    let refunds = Refunds { calls: codes(&[14]), ..Refunds::default() };
    let counting = CostModel { counts: Some(counts), ..CostModel::fixed(1) };
    let refunding = CostModel { refunds, ..CostModel::fixed(1) };
    let none = HeaderMap::new();
    let due = |tariff: &CostModel, call| answered_call(tariff, 200, &none, call);
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

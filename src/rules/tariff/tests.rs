use super::*;

fn told(name: &'static str, otherwise: u32, most: u32) -> Told {
    Told { name: HeaderName::from_static(name), otherwise, most: Some(most) }
}

fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
    let line = |(name, value): &(&'static str, &str)| (HeaderName::from_static(name), value.parse().unwrap());
    lines.iter().map(line).collect()
}

fn priced(cost: Cost) -> Tariff {
    Tariff { cost, ..Tariff::fixed(1) }
}

fn counting(counts: RangeInclusive<u16>) -> Tariff {
    Tariff { counts: Some(Statuses::from_iter([counts])), ..Tariff::fixed(3) }
}

fn answered(tariff: &Tariff, status: u16, lines: &[(&'static str, &str)]) -> Due {
    let headers = headers(lines);
    tariff.due(&Ending::Answered { status: StatusCode::from_u16(status).unwrap(), headers: &headers })
}

fn failed(tariff: &Tariff, status: u16, failure: Failure) -> Due {
    tariff.due(&Ending::Failed { status: StatusCode::from_u16(status).unwrap(), failure })
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
        assert_eq!(tariff.on_arrival(&headers(&[("x-cost", value)])), units, "{value:?}");
    }
    assert_eq!(tariff.on_arrival(&headers(&[])), 5);
    assert_eq!(tariff.on_arrival(&headers(&[("x-cost", "2"), ("x-cost", "9"), ("x-cost", "4")])), 9);
}

#[test]
fn a_number_beyond_counting_saturates() {
    let tariff = priced(Cost::Header(told("x-cost", 1, u32::MAX)));
    assert_eq!(tariff.on_arrival(&headers(&[("x-cost", "4294967296")])), u32::MAX);
    assert_eq!(tariff.on_arrival(&headers(&[("x-cost", "4294967295.1")])), u32::MAX);
}

#[test]
fn a_body_costs_by_every_unit_that_is_begun() {
    let tariff =
        priced(Cost::RequestBytes(Measure { unit: NonZeroU64::new(1024).unwrap(), most: Some(1000) }));
    for (length, units) in
        [("0", 1), ("1", 1), ("1024", 1), ("1025", 2), ("18446744073709551615", 1000), ("x", 1)]
    {
        assert_eq!(tariff.on_arrival(&headers(&[("content-length", length)])), units, "{length}");
    }
    assert_eq!(tariff.on_arrival(&headers(&[])), 1);
    assert_eq!(tariff.on_arrival(&headers(&[("transfer-encoding", "chunked")])), 1);
    assert_eq!(tariff.by_octets(10_000, 0), Some(10));
    assert_eq!(tariff.by_octets(0, 10_000), Some(1));
}

#[test]
fn only_answers_that_count_are_charged() {
    let tariff = counting(401..=403);
    assert_eq!(tariff.charging(), Charging::OnAnswer);
    assert_eq!(answered(&tariff, 401, &[]), Due::AsReserved);
    assert_eq!(answered(&tariff, 403, &[]), Due::AsReserved);
    assert_eq!(answered(&tariff, 200, &[]), Due::Nothing);
    assert_eq!(failed(&tariff, 503, Failure::Connect), Due::Nothing);
    assert_eq!(tariff.due(&Ending::Abandoned), Due::AsReserved);
}

#[test]
fn the_answer_says_what_it_cost() {
    let tariff = priced(Cost::ResponseHeader(told("x-tokens", 10, 500)));
    assert_eq!((tariff.charging(), tariff.on_arrival(&HeaderMap::new())), (Charging::OnAnswer, 10));
    assert_eq!(answered(&tariff, 200, &[("x-tokens", "42")]), Due::Units(42));
    assert_eq!(answered(&tariff, 200, &[("x-tokens", "0")]), Due::Units(0));
    assert_eq!(answered(&tariff, 200, &[("x-tokens", "9999")]), Due::Units(500));
    assert_eq!(answered(&tariff, 200, &[("x-tokens", "many")]), Due::Units(500));
    assert_eq!(answered(&tariff, 200, &[("x-tokens", "41.2")]), Due::Units(42));
    assert_eq!(answered(&tariff, 200, &[("x-tokens", "")]), Due::Units(10));
    assert_eq!(answered(&tariff, 200, &[]), Due::Units(10));
    assert_eq!(failed(&tariff, 502, Failure::Malformed), Due::AsReserved);
}

#[test]
fn a_refund_covers_what_it_names_and_nothing_else() {
    let refunds = Refunds {
        statuses: Statuses::from_iter([500..=599]),
        timeout: true,
        connect_failure: false,
        reset: false,
    };
    let tariff = Tariff { refunds: refunds.clone(), ..Tariff::fixed(1) };
    assert_eq!(tariff.charging(), Charging::OnArrival);
    assert_eq!(answered(&tariff, 500, &[]), Due::Nothing);
    assert_eq!(answered(&tariff, 404, &[]), Due::AsReserved);
    assert_eq!(failed(&tariff, 503, Failure::Connect), Due::Nothing, "our 503 is a 5xx, too");
    assert_eq!(tariff.due(&Ending::Abandoned), Due::AsReserved);
    let tariff = Tariff { refunds: Refunds { statuses: Statuses::default(), ..refunds }, ..tariff };
    assert_eq!(failed(&tariff, 504, Failure::Timeout), Due::Nothing);
    assert_eq!(failed(&tariff, 503, Failure::Connect), Due::AsReserved);
    assert_eq!(failed(&tariff, 503, Failure::Reset), Due::AsReserved);
}

#[test]
fn what_is_known_on_arrival_is_never_settled() {
    assert!(!Tariff::fixed(1).settles());
    assert!(!priced(Cost::Header(told("x-cost", 1, 9))).settles());
    assert!(priced(Cost::ResponseHeader(told("x-cost", 1, 9))).settles());
    assert!(counting(401..=401).settles());
}

#[test]
fn only_a_rule_that_says_how_much_one_request_may_cost_lets_it_owe_that() {
    let told = |most| Cost::ResponseHeader(Told { most, ..told("x-cost", 1, 9) });
    let bytes = |most| Cost::RequestBytes(Measure { unit: NonZeroU64::MIN, most });
    for (cost, debt) in [
        (told(None), Debt::OneBurst),
        (told(Some(9)), Debt::AsTold),
        (bytes(None), Debt::OneBurst),
        (bytes(Some(9)), Debt::AsTold),
        (Cost::Fixed(3), Debt::AsTold),
    ] {
        assert_eq!(priced(cost.clone()).debt(), debt, "{cost:?}");
    }
}

//! Fuzz targets for input from operators: configurations, single values, and data files.

use std::path::Path;

use super::split_selector;
use weir_config::{self as config, Diagnostic, describe_changes, parse};
use weir_net::tls::pem;

/// A configuration is valid, or each of its problems has a position. Parsing is deterministic.
pub fn configuration(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let file = Path::new("fuzz.yaml");
    let read = || config::from_text(text, file, &|name| (name == "SET").then(|| "1".to_owned()));
    match (read(), read()) {
        (Ok(one), Ok(other)) => {
            one.notices.iter().for_each(|notice| assert_has_location(notice, text));
            assert_eq!(
                describe_changes(&one, &other),
                Vec::<String>::new(),
                "the same text gives two configurations"
            );
        }
        (Err(problems), Err(again)) => {
            assert!(!problems.is_empty(), "rejected without a problem");
            problems.iter().for_each(|problem| assert_has_location(problem, text));
            assert_eq!(problems, again);
        }
        (one, other) => panic!("valid once, invalid once: {one:?}, {other:?}"),
    }
    // As a manifest: what is found inside has positions in it, too.
    let content = config::check::load_text(text, file, None);
    content.notes.iter().for_each(|note| assert_has_location(note, text));
    for result in content.configs {
        let found = result.map_or_else(|problems| problems, |config| config.notices);
        let positioned = found.iter().filter(|problem| problem.line > 0);
        positioned.for_each(|problem| assert_has_location(problem, text));
    }
}

fn assert_has_location(problem: &Diagnostic, text: &str) {
    let shown = problem.to_string();
    assert!(!shown.contains(['\n', '\r']), "several lines: {shown:?}");
    if problem.file != Path::new("fuzz.yaml") {
        return;
    }
    // YAML also ends lines at a carriage return.
    let lines = text.split(['\n', '\r']).count();
    assert!((1..=lines + 1).contains(&problem.line) && problem.column >= 1, "wrong position: {shown:?}");
}

/// A value that parses also parses, to the same value, from its displayed form.
pub fn value(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(rate) = parse::rate(text) {
        assert_eq!(parse::rate(&rate.to_string()), Ok(rate));
    }
    if let Ok(duration) = parse::duration(text) {
        let shown = parse::format_duration(duration);
        assert_eq!(parse::duration(&shown), Ok(duration), "shown as {shown}");
    }
    if let Ok(network) = parse::network(text) {
        assert_eq!(parse::network(&network.to_string()), Ok(network));
        assert_eq!(network, network.trunc());
    }
    if let Ok(country) = parse::country(text) {
        assert_eq!(parse::country(&country.to_string()), Ok(country));
    }
    if let Ok(address) = parse::listener_address(text) {
        assert_eq!(parse::listener_address(&address.to_string()), Ok(address));
    }
    for percentage in [parse::percentage, parse::margin] {
        if let Ok(percent) = percentage(text) {
            assert_eq!(percentage(&percent.to_string()), Ok(percent));
        }
    }
    if let Ok(statuses) = parse::status_range(text) {
        assert!(*statuses.start() >= 100 && statuses.end() <= &599 && !statuses.is_empty());
    }
    let _ = (parse::size(text), parse::throttle(text), parse::schedule(text), parse::elastic_factor(text));
    let _ = (parse::upstream_address(text), parse::time_zone(text), parse::plan_name(text), parse::asn(text));
    let _ = (parse::continent(text), parse::delay(text), parse::listen_address(text));
}

/// A data file is valid, or each of its errors has a position. The first byte selects the type of file.
pub fn data_file(data: &[u8]) {
    let (selector, content) = split_selector(data);
    match selector & 7 {
        0 => drop(pem::CertificateChain::from_pem(content)),
        1 => drop(pem::PrivateKey::from_pem(content)),
        2 => drop(pem::Authorities::from_pem(content)),
        kind => config::fuzzing::parse_data_file(kind, content),
    }
}

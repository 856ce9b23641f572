//! Fuzz targets for the rate limit service: the reference's rule files, requests in JSON, and files to import.

use std::sync::Arc;

use super::steered;
use crate::import::{envoy_ratelimit, local_ratelimit};
use crate::limiter::timestamp::Timestamp;
use crate::limiter::{Limiter, LimiterSettings as Table};
use crate::rls::json;
use crate::rls::rules::Rules;
use crate::rls::service::Service;
use crate::rls::settings::Settings;
use crate::rls::windows::Windows;

const NOW: Timestamp = Timestamp::from_secs(1_795_248_002);

const RULES: &str = "domain: d\ndescriptors:\n  - key: k\n    rate_limit: { unit: minute, requests_per_unit: 3 }\n  \
                     - { key: k, value: 'a*', share_threshold: true, rate_limit: { unit: day, requests_per_unit: 0 } }\n";

/// Files are accepted or rejected deterministically. A valid request gets an error or a status for each descriptor.
pub fn rate_limits(data: &[u8]) {
    let (first, rest) = steered(data);
    let text = std::str::from_utf8(rest);
    match (first % 4, text) {
        (0, Ok(text)) => {
            let read = || Rules::from_yaml([("fuzz.yaml", text)], false);
            let read = (read().map(|rules| rules.dump()), read().map(|rules| rules.dump()));
            assert_eq!(read.0, read.1, "the same text gives two sets of rules");
        }
        (1, Ok(text)) => {
            let import = || envoy_ratelimit::import(&[("fuzz.yaml", text)]);
            assert_eq!(import(), import());
        }
        (2, Ok(text)) => {
            let import = || local_ratelimit::import("fuzz.yaml", text);
            assert_eq!(import(), import());
        }
        _ => ask(rest),
    }
}

fn ask(text: &[u8]) {
    let Ok(question) = json::request(text) else { return };
    let limiter = Limiter::new(Table { max_keys: 1000, secret: [7, 11] });
    let (Some(windows), Ok(rules)) =
        (Windows::install(&limiter, NOW), Rules::from_yaml([("rules.yaml", RULES)], false))
    else {
        panic!("the rules of the target load");
    };
    let settings = Arc::new(Settings { dynamic_metadata: true, ..Settings::default() });
    let service = Service { rules: Some(Arc::new(rules)), settings, windows, sharing: None, native: None };
    if let Ok(answer) = service.decide(&question, &limiter, NOW) {
        assert_eq!(answer.statuses.len(), question.descriptors.len());
        assert!(json::answer(&answer).to_string().contains("overallCode"));
    }
}

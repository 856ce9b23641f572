//! Fuzz targets for the rate limit service: the reference's rule files, requests in JSON, and files to import.

use std::sync::Arc;

use super::split_selector;
use weir_import::{envoy_ratelimit, local_ratelimit};
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{Limiter, LimiterSettings as SlotTable};
use weir_rls::decider::RlsDecider;
use weir_rls::json;
use weir_rls::rules::DescriptorRules;
use weir_rls::settings::RlsSettings;
use weir_rls::unit_limits::UnitLimits;

const NOW: Timestamp = Timestamp::from_secs(1_795_248_002);

const RULES: &str = "domain: d\ndescriptors:\n  - key: k\n    rate_limit: { unit: minute, requests_per_unit: 3 }\n  \
                     - { key: k, value: 'a*', share_threshold: true, rate_limit: { unit: day, requests_per_unit: 0 } }\n";

/// Files are accepted or rejected deterministically. A valid request gets an error or a status for each descriptor.
pub fn rate_limits(data: &[u8]) {
    let (first, rest) = split_selector(data);
    let text = std::str::from_utf8(rest);
    match (first % 4, text) {
        (0, Ok(text)) => {
            let read = || DescriptorRules::from_yaml([("fuzz.yaml", text)], false);
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
        _ => decide_json(rest),
    }
}

fn decide_json(text: &[u8]) {
    let Ok(request) = json::parse_request(text) else { return };
    let limiter = Limiter::new(SlotTable { max_keys: 1000, secret: [7, 11] });
    let (Some(windows), Ok(rules)) =
        (UnitLimits::install(&limiter, NOW), DescriptorRules::from_yaml([("rules.yaml", RULES)], false))
    else {
        panic!("the rules of the target load");
    };
    let settings = Arc::new(RlsSettings { dynamic_metadata: true, ..RlsSettings::default() });
    let service = RlsDecider {
        rules: Some(Arc::new(rules)),
        settings,
        unit_limits: windows,
        shared_limits: None,
        native_policy: None,
    };
    if let Ok(response) = service.decide(&request, &limiter, NOW) {
        assert_eq!(response.statuses.len(), request.descriptors.len());
        assert!(json::response_to_json(&response).to_string().contains("overallCode"));
    }
}

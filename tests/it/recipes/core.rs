//! Recipes that depend on the time, on the country or on IPv6 networks. They run without sockets: the compiled policy
//! gets simulated times and addresses.

use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderMap, Method, Uri};
use weir_config as config;
use weir_limiter::elastic::Headroom;
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{self as limiter, Limiter};
use weir_policy::engine::Policy;
use weir_policy::identify::identify;
use weir_policy::rules::selection::Selection;
use weir_policy::throttle::{self, ThrottleAction};

use super::recipe;

/// 2026-11-21T00:00:00Z.
const MIDNIGHT: u64 = 1_795_219_200;
pub(crate) const MINUTE: u64 = 60;
pub(crate) const HOUR: u64 = 60 * MINUTE;

/// Compiled policy of a recipe, with its limiter.
pub(crate) struct RecipeRules {
    policy: Arc<Policy>,
    limiter: Limiter,
}

impl RecipeRules {
    fn from_recipe(heading: &str, files: &[(&str, &[u8])]) -> Self {
        Self::from_text(&format!("listeners: 127.0.0.1:0\nupstream: echo\n{}", recipe(heading)), files)
    }

    /// Compiles a configuration, with the files that it names.
    pub(crate) fn from_text(text: &str, files: &[(&str, &[u8])]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for (name, content) in files {
            std::fs::write(directory.path().join(name), content).unwrap();
        }
        let config = config::from_text(text, &directory.path().join("weir.yaml"), &|_| None).unwrap();
        let limiter = Limiter::new(limiter::LimiterSettings { max_keys: 1000, secret: [7, 11] });
        let policy = config.policy.install(1, &limiter, Timestamp::from_secs(MIDNIGHT));
        Self { policy, limiter }
    }

    /// Whether a request from `client` is admitted `seconds` after midnight.
    pub(crate) fn is_admitted(&self, client: &str, seconds: u64) -> bool {
        let (client, now): (IpAddr, _) = (client.parse().unwrap(), Timestamp::from_secs(MIDNIGHT + seconds));
        let (uri, headers) = (Uri::from_static("/"), HeaderMap::new());
        let request = identify(&Method::GET, &uri, &headers, client, &self.policy.identify, now).unwrap();
        let Selection::Limited(selected, _) = self.policy.rules.select(&request, Headroom::default()) else {
            return false;
        };
        let checks: Vec<_> = selected.iter().map(|selected| selected.check).collect();
        matches!(throttle::resolve(&self.limiter.check(&checks, now)), ThrottleAction::Forward)
    }

    /// Returns how many of `requests` requests are admitted.
    fn count_admitted(&self, requests: usize, client: &str, seconds: u64) -> usize {
        (0..requests).filter(|_| self.is_admitted(client, seconds)).count()
    }
}

#[test]
fn country_is_limited_during_certain_hours() {
    let database = include_bytes!("../../data/city.mmdb");
    let night =
        RecipeRules::from_recipe("Limit one country during certain hours", &[("country.mmdb", database)]);
    let (brazil, germany) = ("198.51.100.7", "192.0.2.7");
    // São Paulo is at UTC-3 all year round.
    let (one, six) = (4 * HOUR, 9 * HOUR);
    assert_eq!(night.count_admitted(2000, brazil, one - 1), 2000);
    assert_eq!(night.count_admitted(2000, brazil, one), 1000);
    assert_eq!(night.count_admitted(2000, brazil, one + MINUTE), 1000);
    assert_eq!(night.count_admitted(2000, germany, one + MINUTE), 2000);
    assert_eq!(night.count_admitted(2000, brazil, six - 1), 1000);
    assert_eq!(night.count_admitted(2000, brazil, six), 2000);
}

#[test]
fn ipv6_networks_of_several_sizes_are_limited() {
    let nested = RecipeRules::from_recipe("Limit IPv6 networks of several sizes", &[]);
    let from = |office: usize, home: usize, host: usize| format!("2001:db8:0:{office}{home:02x}::{host}");
    // A /64 has a limit of 100, whatever its addresses.
    assert_eq!((0..300).filter(|host| nested.is_admitted(&from(1, 0, *host), 0)).count(), 100);
    // Four /64 use up the limit of their /56, and four /56 that of their /48.
    assert_eq!((1..9).map(|home| nested.count_admitted(300, &from(1, home, 1), 0)).sum::<usize>(), 300);
    let others: usize = (2..9)
        .map(|office| (0..9).map(|home| nested.count_admitted(300, &from(office, home, 1), 0)).sum::<usize>())
        .sum();
    assert_eq!(others, 1200);
    assert_eq!(nested.count_admitted(300, "2001:db8:1::1", 0), 100);
}

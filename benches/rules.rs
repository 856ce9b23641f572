//! Benchmark of rule selection: the cost of finding the rules of a request, by the number of rules.
//!
//! Every rule has its own route or host, and each request matches exactly one rule. Only `RuleSet::select` is measured,
//! with the hashing of the key. Run with `cargo bench --features jemalloc --bench rules -- [--rules 1,10,1000,10000] [--rounds 5]`.
#![expect(clippy::print_stdout, reason = "prints its results")]

#[path = "../crates/limiter/benches/governor/timing.rs"]
mod timing;

use std::env;
use std::hint::black_box;

use http::header::HOST;
use http::{HeaderMap, HeaderValue, Method, Uri};
use weir_limiter::elastic::Headroom;
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{self as limiter, InstanceCounts, Limiter};
use weir_policy::identify::{IdentifySettings, identify};
use weir_policy::rules::selection::Selection;
use weir_policy::rules::{RequiredLimits, RuleSet};

use self::timing::{median, thread_cpu_nanos};

/// The allocator of the program.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// 2026-11-21T08:00:00Z.
const NOW: Timestamp = Timestamp::from_secs(1_795_248_000);

/// Attribute by which the rules differ.
#[derive(Clone, Copy, Debug)]
enum MatcherKind {
    Exact,
    Prefix,
    Template,
    Host,
    Header,
    Regex,
}

impl MatcherKind {
    const ALL: [Self; 6] = [Self::Exact, Self::Prefix, Self::Template, Self::Host, Self::Header, Self::Regex];

    /// Returns the `match` section of rule `n`.
    fn matcher(self, n: usize) -> String {
        match self {
            Self::Exact => format!("path: /api/v1/things-{n}"),
            Self::Prefix => format!("path: /api/v1/things-{n}/*"),
            Self::Template => format!("path: '/api/{{tenant}}/things-{n}/{{id}}'"),
            Self::Host => format!("host: tenant-{n}.example.com"),
            Self::Header => format!("path: /api/*,header: {{x-tenant: tenant-{n}}}"),
            Self::Regex => format!("path: '~^/api/v[0-9]+/things-{n}/'"),
        }
    }

    fn request(self, n: usize) -> (Uri, HeaderMap) {
        let path = match self {
            Self::Exact => format!("/api/v1/things-{n}"),
            Self::Prefix | Self::Regex => format!("/api/v1/things-{n}/7"),
            Self::Template => format!("/api/acme/things-{n}/7"),
            Self::Host | Self::Header => "/api/v1/things/7".to_owned(),
        };
        let mut headers = HeaderMap::new();
        let host = match self {
            Self::Host => format!("tenant-{n}.example.com"),
            _ => "www.example.com".to_owned(),
        };
        headers.insert(HOST, HeaderValue::try_from(host).expect("a value"));
        headers.insert("x-tenant", HeaderValue::try_from(format!("tenant-{n}")).expect("a value"));
        headers.insert("accept", HeaderValue::from_static("*/*"));
        (path.parse().expect("a target"), headers)
    }
}

/// Returns `count` rules, loaded from a configuration file.
fn load_rule_set(kind: MatcherKind, count: usize) -> RuleSet {
    let rule = |n| {
        let matcher = kind.matcher(n);
        // Short, because 10,000 of them must fit into the maximum size of a configuration file.
        format!("- {{name: r{n},match: {{{matcher}}},key: client_ip,limit: 9/s}}\n")
    };
    let rules: String = (0..count).map(rule).collect();
    let file = tempfile::NamedTempFile::new().expect("a file");
    let text = format!("listeners: 127.0.0.1:8080\nupstream: echo\nrules:\n{rules}");
    std::fs::write(file.path(), text).expect("the file is written");
    let rules = weir_config::load(file.path()).expect("a valid configuration").policy.rules;
    let limiter = Limiter::new(limiter::LimiterSettings { max_keys: 1000, secret: [fastrand::u64(..), 7] });
    let limits = RequiredLimits::from_rules(&rules, &InstanceCounts::single());
    let handles = limiter.install(limits.specs(), NOW);
    RuleSet::bind(rules, &limits, &handles, limiter.hasher())
}

/// Returns the nanoseconds per selection.
fn measure(set: &RuleSet, requests: &[(Uri, HeaderMap)], selections: usize) -> f64 {
    let settings = IdentifySettings::default();
    let peer = [192, 0, 2, 1].into();
    let identified: Vec<_> = requests
        .iter()
        .map(|(uri, headers)| identify(&Method::GET, uri, headers, peer, &settings, NOW).expect("a request"))
        .collect();
    let started = thread_cpu_nanos();
    for request in identified.iter().cycle().take(selections) {
        match black_box(set.select(black_box(request), Headroom::default())) {
            Selection::Limited(selected, _) => assert_eq!(selected.len(), 1, "each request matches one rule"),
            other => panic!("{other:?}"),
        }
    }
    (thread_cpu_nanos() - started) as f64 / selections as f64
}

fn numbers(arguments: &[String], name: &str) -> Option<Vec<usize>> {
    let position = arguments.iter().position(|argument| argument == name)?;
    let text = arguments.get(position + 1)?;
    Some(text.split(',').map(|number| number.parse().expect("comma-separated numbers")).collect())
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    // Test runners list the tests with `--list`; there are none with a name.
    if arguments.iter().any(|argument| argument == "--list") {
        return;
    }
    // Cargo passes `--bench` for a measurement. Without it this is a test run, which only checks that the benchmark
    // works.
    let measuring = arguments.iter().any(|argument| argument == "--bench");
    let (counts, selections) =
        if measuring { (vec![1, 10, 1000, 10_000], 1_000_000) } else { (vec![1, 10], 1000) };
    let counts = numbers(&arguments, "--rules").unwrap_or(counts);
    let rounds = numbers(&arguments, "--rounds").map_or(5, |rounds| rounds[0]);
    println!("Nanoseconds per selection, medians of {rounds} rounds. Warm: ten rules are asked for in turn;");
    println!("all: a thousand.");
    println!("  told apart by    rules      warm       all");
    for kind in MatcherKind::ALL {
        for &count in &counts {
            let set = load_rule_set(kind, count);
            let figure = |asked: usize| {
                // Requests match the rules in random order.
                let mut random = fastrand::Rng::with_seed(7);
                let requests: Vec<_> = (0..asked).map(|_| kind.request(random.usize(..count))).collect();
                let runs = if matches!(kind, MatcherKind::Regex) { selections / 100 } else { selections };
                median((0..rounds).map(|_| measure(&set, &requests, runs.max(100))).collect())
            };
            println!(
                "  {:<12} {count:>9} {:>9.1} {:>9.1}",
                format!("{kind:?}").to_lowercase(),
                figure(10),
                figure(1000)
            );
        }
    }
}

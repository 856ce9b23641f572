//! Benchmark of outgoing calls: callers call a provider with a limit through instances of Weir. It measures the
//! provider's rejections, use of its limit, waits, fairness, evenness of arrivals, and the memory of waiting calls.
//!
//! `cargo bench --features jemalloc --bench egress -- [table|spread|halved|waiting|in-process] [--weir PATH] [--limits 10,1000,max]
//! [--instances 1,8] [--providers sliding,fixed,bucket] [--shapes steady,bursty,double,closed,tenants,fair-tenants]
//! [--share 99] [--seconds 6] [--treatment wait|delay|hard] [--pace even|pid] [--svg DIRECTORY]`.
//!
//! The provider, the callers and each instance of Weir are processes of their own. All run on this machine, so results
//! with saturated processors measure the machine. `max` is half of what it can do with one instance and no limit.
#![expect(clippy::print_stdout, reason = "prints its results")]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a benchmark")]

#[path = "egress/bars.rs"]
mod bars;
#[path = "egress/callers.rs"]
mod callers;
#[path = "../crates/limiter/benches/governor/cpu_time.rs"]
mod cpu_time;
#[path = "egress/experiment.rs"]
mod experiment;
#[path = "egress/figures.rs"]
mod figures;
#[path = "egress/halved.rs"]
mod halved;
#[path = "egress/holders.rs"]
mod holders;
#[path = "egress/http1.rs"]
mod http1;
#[path = "egress/in_process.rs"]
mod in_process;
#[path = "../tests/it/support/metrics.rs"]
mod metrics;
#[path = "elastic/plot.rs"]
mod plot;
#[path = "egress/provider.rs"]
mod provider;
#[path = "egress/rule.rs"]
mod rule;
#[expect(dead_code, reason = "tests use all of it")]
#[path = "../tests/store/servers.rs"]
mod servers;
#[path = "egress/sidecar.rs"]
mod sidecar;
#[path = "egress/spread.rs"]
mod spread;
#[expect(dead_code, reason = "tests use all of it")]
#[path = "../tests/store/support.rs"]
mod support;
#[path = "egress/table.rs"]
mod table;
#[path = "egress/waiting.rs"]
mod waiting;

use std::env;
use std::path::PathBuf;

use self::experiment::Laboratory;
use self::provider::enforcement::Kind;
use self::rule::Treatment;
use self::table::{Row, Shape};

/// The program's allocator.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Paces of a rule, as `--pace` names them.
const PACES: [&str; 2] = ["even", "pid"];

fn main() {
    let words: Vec<String> = env::args().skip(1).collect();
    let role = words.first().map(String::as_str).unwrap_or_default();
    match role {
        "provider" => provider::serve(serde_json::from_str(&words[1]).unwrap()).unwrap(),
        "callers" => callers::run(serde_json::from_str(&words[1]).unwrap()),
        "holders" => holders::run(serde_json::from_str(&words[1]).unwrap()),
        "in-process" => in_process::run(number("--limit", 100_000.0) as u64, number("--seconds", 5.0)),
        _ => {
            let weir = argument("--weir").unwrap_or_else(|| env!("CARGO_BIN_EXE_weir").to_owned());
            run(role, &mut Laboratory::new(weir.into()));
        }
    }
}

fn run(scene: &str, laboratory: &mut Laboratory) {
    let svg = argument("--svg").map(PathBuf::from);
    let svg = svg.as_deref();
    let limit = number("--limit", 1000.0) as u64;
    match scene {
        "spread" => {
            println!("{}", spread::HEAD);
            for instances in instances() {
                let (share, seconds) = (number("--share", 99.0) / 100.0, number("--seconds", 10.0));
                let options =
                    spread::SpreadOptions { limit, instances, share, treatment: treatment(), seconds, svg };
                spread::run(laboratory, &options);
            }
        }
        "halved" => {
            println!("{}", halved::HEAD);
            for instances in instances() {
                let options = halved::HalvedOptions { limit, instances, treatment: treatment(), svg };
                halved::run(laboratory, &options);
            }
        }
        "waiting" => waiting::run(laboratory, number("--calls", 100_000.0) as usize, treatment()),
        _ => print_table(laboratory),
    }
}

fn print_table(laboratory: &mut Laboratory) {
    let seconds = number("--seconds", 6.0);
    let limits: Vec<u64> = list("--limits", "10,1000,max")
        .iter()
        .map(|text| if text == "max" { max_limit(laboratory, seconds) } else { text.parse().unwrap() })
        .collect();
    let kinds = list("--providers", "sliding,fixed,bucket");
    let shapes = list("--shapes", "steady,bursty,double,closed,tenants,fair-tenants");
    println!("{}", table::HEAD);
    for kind in kinds.iter().map(|name| Kind::parse(name).unwrap()) {
        for limit in &limits {
            for instances in instances() {
                for (_, shape) in
                    Shape::ALL.into_iter().filter(|(name, _)| shapes.iter().any(|it| it == name))
                {
                    let row = Row {
                        kind,
                        limit: *limit,
                        instances,
                        shape,
                        share: number("--share", 99.0) / 100.0,
                        treatment: treatment(),
                        pace: pace(),
                        seconds,
                    };
                    let line = row.run(laboratory).unwrap_or_else(|error| format!("{row:?}: {error}"));
                    println!("{line}");
                }
            }
        }
    }
}

/// Returns half of what this machine can do with one instance, to two digits.
fn max_limit(laboratory: &mut Laboratory, seconds: f64) -> u64 {
    let capacity = table::capacity(laboratory, 1, seconds).unwrap();
    println!("{capacity:.0} calls/s through one instance without a limit");
    let unit = 10_f64.powi((capacity / 2.0).log10().floor() as i32 - 1);
    ((capacity / 2.0 / unit).floor() * unit) as u64
}

fn instances() -> Vec<usize> {
    list("--instances", "1,8").iter().map(|text| text.parse().unwrap()).collect()
}

fn treatment() -> Treatment {
    argument("--treatment").map_or(Treatment::Wait, |text| Treatment::parse(&text).unwrap())
}

fn pace() -> Option<&'static str> {
    let given = argument("--pace")?;
    PACES.into_iter().find(|pace| *pace == given)
}

fn argument(name: &str) -> Option<String> {
    let mut arguments = env::args().skip_while(|argument| argument != name);
    arguments.nth(1)
}

fn number(name: &str, default: f64) -> f64 {
    argument(name).map_or(default, |text| text.parse().unwrap())
}

fn list(name: &str, default: &str) -> Vec<String> {
    argument(name).as_deref().unwrap_or(default).split(',').map(str::to_owned).collect()
}

//! Calls that instances send within a limit that they share.

use std::sync::Mutex;
use std::time::Instant;

use super::*;
use crate::support::slow_link;

const RATE: usize = 200;
const BURST: usize = 20;
const CALLS: usize = 480;
const SHARED: &str = "    limit: 200/s\n    burst: 20\n    scope: shared\n    respond: 202\n";

/// An upstream that notes when each call arrives.
fn timed_origin() -> (Origin, Arc<Mutex<Vec<Instant>>>) {
    let arrivals = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&arrivals);
    let origin = Origin::start(move |request| {
        request.body()?;
        noted.lock().unwrap().push(wait::now());
        request.send(NO_CONTENT)?;
        Ok(AfterResponse::Keep)
    });
    (origin, arrivals)
}

fn start_fleet(store: &Server, upstream: &Origin, instances: usize) -> Vec<Weir> {
    let yaml = deferring(&store.url(), upstream, SHARED);
    let fleet: Vec<_> = (0..instances).map(|_| Weir::start(&yaml)).collect();
    let knows_all = |weir: &Weir| weir.metric("weir_store_instances", &[]) == instances as f64;
    wait::until_true("the instances", || fleet.iter().all(knows_all));
    fleet
}

/// Accepts all calls, the same number on each instance. Returns the time before the first.
fn accept_on_all(fleet: &[Weir]) -> Instant {
    let begun = wait::now();
    run_concurrently(fleet.len(), |number| {
        let mut connection = Client::connect(fleet[number].address());
        for call in 0..CALLS / fleet.len() {
            let path = format!("/hooks/{number}-{call}");
            assert_eq!(connection.fetch(&Request::post(&path, "x")).status, 202);
        }
    });
    begun
}

/// Asserts that no more calls have arrived by any time than the limit admits until then.
fn assert_within_limit(begun: Instant, arrivals: &Mutex<Vec<Instant>>) {
    let mut arrivals = arrivals.lock().unwrap().clone();
    arrivals.sort_unstable();
    for (number, arrival) in (1..).zip(&arrivals) {
        let most = BURST as f64 + RATE as f64 * (*arrival - begun).as_secs_f64();
        assert!(f64::from(number) <= most, "{number} calls where the limit admits {most}");
    }
}

fn until_empty(fleet: &[Weir]) {
    for weir in fleet {
        // What a killed instance held is claimed after five seconds.
        let emptied = wait::within(Duration::from_secs(30), || (status(weir)["calls"] == 0).then_some(()));
        assert!(emptied.is_some(), "{}", status(weir));
        assert_eq!(status(weir)["dead_letters"], 0);
    }
}

#[test]
fn fleet_sends_all_calls_within_a_shared_limit() {
    for instances in [1, 3, 8] {
        let store = Server::start();
        let (upstream, arrivals) = timed_origin();
        let fleet = start_fleet(&store, &upstream, instances);
        let begun = accept_on_all(&fleet);
        until_delivered(&upstream, CALLS);
        until_empty(&fleet);
        assert_within_limit(begun, &arrivals);
        assert!(deliveries(&upstream).values().all(|count| *count == 1), "{instances} instances");
    }
}

#[test]
fn wait_of_a_rule_applies_to_its_stored_calls() {
    let (store, (upstream, _)) = (Server::start(), timed_origin());
    let link = slow_link::start(([127, 0, 0, 1], store.port()).into(), Duration::from_millis(30));
    let rule =
        "    limit: 100/s\n    scope: { shared: lease, wait: 1ms, on_store_loss: allow }\n    respond: 202\n";
    let weir = Weir::start(&deferring(&format!("redis://{link}"), &upstream, rule));
    wait::until_true("the store", || weir.metric("weir_store_up", &[]) == 1.0);
    accept_many(&weir, 1, 3);
    until_delivered(&upstream, 3);
    wait::until_true("a wait that is too short", || weir.unanswered() > 0.0);
}

#[test]
fn survivors_of_a_killed_instance_send_its_calls_within_the_shared_limit() {
    let store = Server::start();
    let (upstream, arrivals) = timed_origin();
    let mut fleet = start_fleet(&store, &upstream, 3);
    let begun = accept_on_all(&fleet);
    fleet[0].kill();
    until_delivered(&upstream, CALLS);
    until_empty(&fleet[1..]);
    assert_within_limit(begun, &arrivals);
    let claimed: f64 =
        fleet[1..].iter().map(|weir| weir.metric("weir_deferred_claimed_total", &[("rule", "hooks")])).sum();
    let duplicates = arrivals.lock().unwrap().len() - CALLS;
    assert!(duplicates as f64 <= claimed, "{duplicates} calls were sent twice, {claimed} claimed");
}

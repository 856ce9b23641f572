//! More keys than the counter table can hold: they free no blocked client, and a warning is logged.

use crate::support::{Client, Request, Weir, config, wait};

const RULES: &str = "
limiter: { max_keys: 64 }
rules: [{ name: per-key, key: { header: x-key }, limit: 3/d }]
";

#[test]
fn key_flood_frees_no_limited_key_and_is_logged() {
    let weir = Weir::start(&config("echo", RULES));
    let mut client = Client::connect(weir.address());
    let mut ask = |key: &str| client.fetch(&Request::get("/").header("x-key", key)).status;
    let statuses: Vec<_> = (0..4).map(|_| ask("blocked")).collect();
    assert_eq!(statuses, [200, 200, 200, 429]);
    let mut passed = 0;
    for number in 0..2000 {
        passed += u32::from(ask(&format!("flood-{number}")) == 200);
        if number % 100 == 0 {
            assert_eq!(ask("blocked"), 429, "admitted again after {number} keys");
        }
    }
    assert!((64..200).contains(&passed), "{passed} admitted");
    assert!(weir.metric("weir_limiter_overflow_total", &[]) > 0.0);
    assert!(weir.metric("weir_limiter_entries", &[]) <= 80.0);
    let table = weir.admin_json("/limits")["table"].clone();
    assert!(table["crowded_shards"].as_u64() >= Some(1), "{table}");
    let is_said = |line: &String| line.contains("the counter table is full");
    wait::until_true("a line in the log", || weir.log().iter().any(is_said));
    for number in 2000..2100 {
        ask(&format!("flood-{number}"));
    }
    assert_eq!(weir.log().iter().filter(|line| is_said(line)).count(), 1, "logged at most once a minute");
}

use std::collections::HashMap;

use super::*;

const NEWCOMER: &str = "\
listeners:
  - address: 0.0.0.0:8080
upstream:
  address: 127.0.0.1:3000
rules:
  - name: per-ip
    key: [client_ip]
    limit: 100/s
    burst: 200
";

fn with(environment: &[(&str, &str)], text: &str) -> Result<Config, Vec<String>> {
    let environment: HashMap<_, _> = environment.iter().copied().collect();
    from_text(text, Path::new("weir.yaml"), &|name| environment.get(name).map(|value| (*value).to_owned()))
        .map_err(|problems| problems.iter().map(ToString::to_string).collect())
}

fn config(text: &str) -> Config {
    with(&[], text).unwrap()
}

fn problems(text: &str) -> Vec<String> {
    with(&[], text).unwrap_err()
}

#[test]
fn the_newcomers_file_is_a_configuration() {
    let config = config(NEWCOMER);
    assert_eq!(config.listeners.len(), 1);
    assert_eq!(config.rules[0].limits()[0].quota.burst().get(), 200);
    assert_eq!(config.refusals.len(), 1);
    assert_eq!(config.notices, []);
}

#[test]
fn dump() {
    println!("{}", serde_json::to_string_pretty(schema::schema()).unwrap());
    let bad = NEWCOMER
        .replace("100/s", "10/fortnight")
        .replace("burst", "brust")
        .replace("address: 127.0.0.1:3000", "adress: 5\n  timeout: 5");
    println!("{}", problems(&bad).join("\n"));
}

//! Examples whose rules read fields of bodies.

use super::{Example, scripted_upstream, times};
use crate::support::{Request, fetch};

#[test]
fn login_example_limits_failures_by_address_and_account() {
    let origin = scripted_upstream();
    let weir = Example::start_with_upstream("login.yaml", &origin);
    let form = |account: &str| {
        let body = format!("username={account}&password=x");
        Request::post("/login", body).header("content-type", "application/x-www-form-urlencoded")
    };
    let wrong = |account: &str| form(account).header("x-respond", "401");
    assert_eq!(weir.statuses(20, &form("ann")), times(200, 20), "successful logins do not count");
    assert_eq!(weir.statuses(1, &Request::post("/login", "x")), [400], "neither a form nor JSON");
    let failed: Vec<u16> =
        (0..11).flat_map(|number| weir.statuses(1, &wrong(&format!("user{number}")))).collect();
    assert_eq!(failed, [times(401, 10), times(429, 1)].concat());
    assert_eq!(weir.statuses(1, &form("ann")), [429], "banned");
    let json = Request::post("/login", r#"{"username":"ann","password":"x"}"#);
    let json = json.header("content-type", "application/json").header("x-respond", "401");
    for (address, wrong) in (2..7).zip([wrong("ann"), json.clone()].iter().cycle()) {
        assert_eq!(weir.statuses_from(&format!("127.0.0.{address}"), 1, wrong), [401]);
    }
    for wrong in [wrong("ann"), json] {
        assert_eq!(weir.statuses_from("127.0.0.8", 1, &wrong), [429], "five failures of the account");
    }
    assert_eq!(weir.statuses_from("127.0.0.8", 1, &form("bob")), [200]);
}

#[test]
fn graphql_example_charges_the_fields_of_queries() {
    let origin = scripted_upstream();
    let weir = Example::start_with_upstream("graphql.yaml", &origin);
    let query = |count: u32| {
        let body = format!("{{\"query\":\"{{ users(first: {count}) {{ name }} }}\"}}");
        Request::post("/graphql", body).header("content-type", "application/json")
    };
    let of = |key: &str, count: u32| query(count).header("x-api-key", key);
    assert_eq!(weir.statuses(2, &of("me", 4999)), [200, 429]);
    assert_eq!(weir.statuses(2, &of("you", 20)), [200, 200]);
    let remaining = |request: &Request| {
        fetch(weir.weir.address(), request).header("x-ratelimit-remaining").parse::<u32>().unwrap()
    };
    let request =
        Request::get("/graphql?query=%7Busers(first:4000)%7Bname%7D%7D").header("x-api-key", "they");
    assert!(remaining(&request) < 1000, "a GET costs the same");
    assert_eq!(weir.statuses(1, &query(1)), [403]);
}

#[test]
fn mcp_example_limits_tools() {
    let origin = scripted_upstream();
    let weir = Example::start_with_upstream("mcp.yaml", &origin);
    let message = |method: &str, params: &str| {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
        Request::post("/mcp", body).header("content-type", "application/json")
    };
    let call = |tool: &str| message("tools/call", &format!(r#"{{"name":"{tool}","arguments":{{}}}}"#));
    assert_eq!(weir.statuses(6, &call("search")), [times(200, 5), times(429, 1)].concat());
    assert_eq!(weir.statuses(1, &call("add")), [200]);
    assert_eq!(weir.statuses(1, &call("admin_reset")), [403]);
    assert_eq!(weir.statuses(20, &message("tools/list", "{}")), times(200, 20));
    assert_eq!(weir.statuses(1, &Request::get("/mcp")), [200], "a stream of messages");
}

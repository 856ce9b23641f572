//! Counting by response: charges that depend on the response, refunds, and costs stated by the request or the response.

mod costs;
mod deadlines;
mod departures;
mod distinct;
mod resent;
mod responses;
mod settlement;
mod shared_counters;
mod tokens;

use std::time::Duration;

use crate::support::{AfterResponse, Client, Origin, Request, Weir, config, config_with, wait};

/// Starts a proxy in front of `origin` with this rule.
fn start_with_rule(origin: &Origin, rule: &str) -> Weir {
    Weir::start(&config(origin.address(), &format!("rules:\n  - {rule}\n")))
}

/// Starts such a proxy with a request timeout of 300 ms.
fn start_with_short_timeout(origin: &Origin, rule: &str) -> Weir {
    let upstream = format!("{{ address: \"{}\", timeout: 300ms }}", origin.address());
    Weir::start(&config_with(crate::support::LISTENER, &upstream, &format!("rules:\n  - {rule}\n")))
}

/// Returns an upstream that responds as the path says: `/401` with 401, `/late` never, `/close` by closing. The request
/// header `x-answer: NAME: VALUE` adds a response header.
fn scripted_upstream() -> Origin {
    Origin::start(|turn| {
        turn.body()?;
        let header = turn.head.get("x-answer").map(|header| format!("{header}\r\n")).unwrap_or_default();
        match turn.head.word(1).trim_start_matches('/').to_owned().as_str() {
            "late" => {
                wait::pause(Duration::from_secs(2));
                Ok(AfterResponse::Close)
            }
            "close" => Ok(AfterResponse::Close),
            status => {
                let length = if status == "204" { "" } else { "content-length: 2\r\n" };
                let body = if status == "204" { "" } else { "ok" };
                turn.send(format!("HTTP/1.1 {status} Told\r\n{length}{header}\r\n{body}"))?;
                Ok(AfterResponse::Keep)
            }
        }
    })
}

/// Requests these paths in order, each on a new connection, and returns the status codes.
fn statuses(weir: &Weir, paths: &[&str]) -> Vec<u16> {
    paths.iter().map(|path| Client::connect(weir.address()).get(path).status).collect()
}

/// Returns the remaining units according to the response to `request`.
fn remaining(weir: &Weir, request: &Request) -> u64 {
    Client::connect(weir.address()).fetch(request).numeric_header("x-ratelimit-remaining")
}

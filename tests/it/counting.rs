//! What is counted by its answer, what is given back, and what a cost is that somebody tells.

mod costs;
mod deadlines;
mod responses;
mod settling;
mod shared;

use std::time::Duration;

use crate::support::{Client, Origin, Request, Then, Weir, config, config_with, wait};

/// A proxy in front of `origin` with this rule.
fn with_rule(origin: &Origin, rule: &str) -> Weir {
    Weir::start(&config(origin.address(), &format!("rules:\n  - {rule}\n")))
}

/// The same with an upstream that has to answer within a fraction of a second.
fn impatient(origin: &Origin, rule: &str) -> Weir {
    let upstream = format!("{{ address: \"{}\", timeout: 300ms }}", origin.address());
    Weir::start(&config_with(crate::support::LISTENER, &upstream, &format!("rules:\n  - {rule}\n")))
}

/// Answers as the path says: `/401` with 401, `/late` never, `/close` by closing, and with the headers that
/// the request has as `x-answer: NAME: VALUE`.
fn obedient() -> Origin {
    Origin::start(|turn| {
        turn.body()?;
        let header = turn.head.get("x-answer").map(|header| format!("{header}\r\n")).unwrap_or_default();
        match turn.head.word(1).trim_start_matches('/').to_owned().as_str() {
            "late" => {
                wait::pause(Duration::from_secs(2));
                Ok(Then::Close)
            }
            "close" => Ok(Then::Close),
            status => {
                let length = if status == "204" { "" } else { "content-length: 2\r\n" };
                let body = if status == "204" { "" } else { "ok" };
                turn.send(format!("HTTP/1.1 {status} Told\r\n{length}{header}\r\n{body}"))?;
                Ok(Then::Keep)
            }
        }
    })
}

/// The statuses of these paths, one after the other, each on a connection of its own.
fn statuses(weir: &Weir, paths: &[&str]) -> Vec<u16> {
    paths.iter().map(|path| Client::connect(weir.address()).get(path).status).collect()
}

/// What is left according to the answer to `request`.
fn remaining(weir: &Weir, request: &Request) -> u64 {
    Client::connect(weir.address()).ask(request).number("x-ratelimit-remaining")
}

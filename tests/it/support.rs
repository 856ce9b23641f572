//! Helpers for tests: the proxy under test, a scripted upstream, and clients that can send invalid or incomplete
//! requests. All of them use blocking sockets and threads, so that a test reads from top to bottom.

pub(crate) mod client;
pub(crate) mod envoy;
pub(crate) mod epoll;
pub(crate) mod frame_origin;
pub(crate) mod frames;
pub(crate) mod gated_link;
pub(crate) mod grpc;
pub(crate) mod h2;
pub(crate) mod h2_origin;
pub(crate) mod load;
pub(crate) mod metrics;
pub(crate) mod origin;
pub(crate) mod peers;
pub(crate) mod pki;
pub(crate) mod replacement;
pub(crate) mod slow_link;
pub(crate) mod tls_front;
pub(crate) mod wait;
pub(crate) mod weir;
pub(crate) mod wire;

use std::fmt::Display;
use std::io::Write;

pub(crate) use client::{Client, Request, Response, fetch, get};
pub(crate) use origin::{AfterResponse, Origin};
pub(crate) use weir::Weir;

/// A listener entry with a port chosen by the system.
pub(crate) const LISTENER: &str = "{ address: 127.0.0.1:0, name: inbound }";

/// Returns a configuration with one listener, an admin port and `upstream`; `rest` is top-level YAML.
pub(crate) fn config(upstream: impl Display, rest: &str) -> String {
    config_with(LISTENER, &format!("{{ address: \"{upstream}\" }}"), rest)
}

/// Returns such a configuration with the given listener entry and upstream map.
pub(crate) fn config_with(listener: &str, upstream: &str, rest: &str) -> String {
    let rules = if rest.lines().any(|line| line.starts_with("rules:")) { "" } else { "\nrules: []\n" };
    let workers = if rest.lines().any(|line| line.starts_with("workers:")) { "" } else { "workers: 1\n" };
    format!(
        "listeners: [{listener}]\nadmin: {{ address: 127.0.0.1:0 }}\nupstream: {upstream}\n{workers}{rest}{rules}"
    )
}

/// Returns the content as a member of gzip.
pub(crate) fn gzip(content: impl AsRef<[u8]>) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(content.as_ref()).unwrap();
    encoder.finish().unwrap()
}

/// Runs `work` on `count` threads concurrently and returns the results.
pub(crate) fn run_concurrently<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|index| scope.spawn(move || work(index))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

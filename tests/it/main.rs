//! Black-box tests of the `weir` binary, with real sockets on the loopback interface and without access to its
//! internals.
//!
//! Every test starts its own process on ports chosen by the system, and waits for conditions. The tests cover the
//! public contract: the command line, the configuration, the wire protocols and the admin port. Only `config_mistakes`
//! calls the library directly, since it checks hundreds of files.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops, and the line says where")]

mod access_log;
mod adaptive_concurrency;
mod admin;
mod alerts;
mod balance;
mod bodies;
mod check;
mod classes;
mod cli;
mod client_ip;
mod config_mistakes;
mod config_over_http;
mod counter_overflow;
mod counting;
mod decisions;
mod deferred;
mod drain;
mod elastic;
mod examples;
mod explain;
mod fallback;
mod feedback;
mod forward_proxy;
mod forwarding;
mod geo;
mod graphql;
mod hostile;
mod http2;
mod idle_connections;
mod import;
mod jwt;
mod kubectl;
mod limiting;
mod lingering;
mod malformed;
mod migration;
mod observe;
mod overload;
mod own_limits;
mod plans;
mod proxy_protocol;
mod recipes;
mod reload;
mod remote;
mod replacement;
mod replay;
mod rls;
#[path = "../store/servers.rs"]
#[expect(dead_code, reason = "the tests of the store's client use the rest")]
mod servers;
mod service_manager;
mod sharing;
mod slow_clients;
mod state_file;
mod stated_limits;
mod streams;
mod suggest;
mod support;
mod throttling;
mod timeouts;
mod tls;
mod top;
mod tracing;
mod unix_sockets;
mod upgrades;
mod upstreams;
mod waiting;

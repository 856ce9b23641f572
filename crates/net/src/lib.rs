//! What a network server needs before it knows any protocol of its clients: listeners, transports, TLS, clocks, workers,
//! and the drain at the end; and what it needs of other services: their addresses, and HTTP.

#![cfg_attr(not(test), deny(clippy::unwrap_used))]

pub mod atomic_file;
pub mod batch_queue;
pub mod clock;
pub mod connect;
pub mod dns;
pub mod drain;
pub mod fd_channel;
pub mod http_client;
pub mod http_server;
pub mod in_place;
pub mod jitter;
pub mod listener;
pub mod outage;
pub mod overload;
pub mod replacement;
pub mod thread;
pub mod tls;
pub mod transport;
pub mod watch;
pub mod worker;

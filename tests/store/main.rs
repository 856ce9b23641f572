//! The store client with real servers: its handling of every kind of response, and of missing responses.
//!
//! All tests except `tls` run with Redis and with Valkey. Their differences are in [`servers::Flavour`].
#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops, and the line says where")]
#![expect(clippy::duplicate_mod, reason = "one suite for two servers")]

mod caller;
mod floods;
#[path = "suite.rs"]
mod redis;
#[expect(dead_code, reason = "the tests of the program use the rest")]
mod servers;
#[expect(dead_code, reason = "the tests of the program use the rest")]
mod support;
mod tls;
#[path = "suite.rs"]
mod valkey;

//! Where somebody is whom we ask by gRPC.

use super::upstream_tls;
use crate::config::at::At;
use crate::config::files::Files;
use crate::config::problem::Report;
use crate::config::{parse, raw};
use crate::remote::channel::Place;
use crate::tls::client;
use crate::upstream::Address;

/// The place that stands under `key` of what is at `at`, and TLS towards it where it is spoken there.
pub(super) fn place(
    (key, address): (&'static str, &raw::UpstreamAddress),
    tls: Option<&raw::UpstreamTls>,
    at: At<'_>,
    files: &mut Files,
    report: &mut Report<'_>,
) -> Option<(Place, Option<client::Settings>)> {
    let place = report.take(at.key(key), parse::upstream_address(&address.0))?;
    let tls = upstream_tls::client(tls, std::slice::from_ref(&place), (at, at.key(key)), files, report);
    let place = match place.address {
        Address::Tcp { host, port } => Place::Tcp(host, port),
        Address::Unix(path) => Place::Unix(path),
        Address::Echo => {
            let expected = "expected `host:port`, `https://host:port` or `unix:/path`";
            report.value(at.key(key), format!("`echo` answers no gRPC, {expected}"));
            return None;
        }
    };
    Some((place, tls))
}

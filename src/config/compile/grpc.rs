//! Addresses of gRPC services that Weir calls.

use super::upstream_tls;
use crate::config::at::At;
use crate::config::files::Files;
use crate::config::problem::Report;
use crate::config::{parse, raw};
use crate::remote::channel::Place;
use crate::tls::client;
use crate::upstream::UpstreamAddress;

/// Reads the address under `key` of the map at `at`, and the TLS settings for it if it uses TLS.
pub(super) fn place(
    (key, address): (&'static str, &raw::UpstreamAddress),
    tls: Option<&raw::UpstreamTls>,
    at: At<'_>,
    files: &mut Files,
    report: &mut Report<'_>,
) -> Option<(Place, Option<client::TlsClientSettings>)> {
    let place = report.take(at.key(key), parse::upstream_address(&address.0))?;
    let tls = upstream_tls::client(tls, std::slice::from_ref(&place), (at, at.key(key)), files, report);
    let place = match place.address {
        UpstreamAddress::Tcp { host, port } => Place::Tcp(host, port),
        UpstreamAddress::Unix(path) => Place::Unix(path),
        UpstreamAddress::Echo => {
            let expected = "expected `host:port`, `https://host:port` or `unix:/path`";
            report.value(at.key(key), format!("`echo` is not a gRPC service, {expected}"));
            return None;
        }
    };
    Some((place, tls))
}

//! Addresses of gRPC services that Weir calls.

use super::upstream_tls;
use crate::at::At;
use crate::data_files::DataFiles;
use crate::{parse, raw};
use weir_net::tls::client;
use weir_store::remote::channel::ServerAddress;
use weir_upstream::UpstreamAddress;

/// Reads the address under `key` of the map at `at`, and the TLS settings for it if it uses TLS.
pub(super) fn read_address(
    key: &'static str,
    address: &raw::UpstreamAddress,
    tls: Option<&raw::UpstreamTls>,
    at: At<'_>,
    files: &mut DataFiles,
) -> Option<(ServerAddress, Option<client::TlsClientSettings>)> {
    let place = at.key(key).ok(parse::upstream_address(&address.0))?;
    let (host, is_secure) = (place.address.host(), place.is_secure);
    let tls = upstream_tls::compile_client(tls, host, is_secure, at, at.key(key), files);
    let place = match place.address {
        UpstreamAddress::Tcp { host, port } => ServerAddress::Tcp(host, port),
        UpstreamAddress::Unix(path) => ServerAddress::Unix(path),
        UpstreamAddress::Echo => {
            let expected = "expected `host:port`, `https://host:port` or `unix:/path`";
            at.key(key).error(format!("`echo` is not a gRPC service, {expected}"));
            return None;
        }
    };
    Some((place, tls))
}

//! Which of the fields that concern a proxy a request has.
//!
//! Most requests have few of them, and asking for each by name would hash a dozen names per request: so all fields are
//! looked at once.

use http::{HeaderValue, Version, request};

use super::{
    Expectation, Unacceptable, has_good_target, identity, is_chunked, names_one_host, overrides,
    validate_fields,
};
use crate::headers::is_hop_by_hop;
use crate::identify::forwarded;

/// The fields of a request that a later stage looks up or removes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::proxy) struct RequestHeaderFlags {
    /// Something that does not go on as it is.
    pub(super) of_the_hop: bool,
    pub(super) expect: bool,
    pub(in crate::proxy) forwarded_for: bool,
    pub(super) forwarded_proto: bool,
    pub(super) request_id: bool,
    pub(super) external: bool,
    pub(super) client_cert: bool,
    pub(super) overrides: bool,
    /// What only looks like one of ours.
    pub(super) imitations: bool,
}

impl RequestHeaderFlags {
    /// Whether the client waits for permission to send its body.
    pub(in crate::proxy) const fn expectation(self) -> Expectation {
        if self.expect { Expectation::Continue } else { Expectation::None }
    }
}

/// Refuses what is HTTP and a proxy must not pass on, and more than so many fields; answers which there are.
///
/// # Errors
/// Why the request cannot be passed on.
pub(in crate::proxy) fn validate(
    head: &request::Parts,
    most_fields: u32,
) -> Result<RequestHeaderFlags, Unacceptable> {
    if head.version == Version::HTTP_2 {
        validate_fields(&head.headers, most_fields)?;
    }
    has_good_target(head)?;
    let mut flags = RequestHeaderFlags::default();
    let (mut hosts, mut codings) = (Once::None, Once::None);
    for (name, value) in &head.headers {
        match name.as_str() {
            "host" => hosts.add(value),
            "transfer-encoding" => {
                codings.add(value);
                flags.of_the_hop = true;
            }
            "expect" => {
                flags.expect = true;
                flags.of_the_hop = true;
            }
            // Only we say who is over a limit.
            "x-envoy-internal" | "x-weir-over-limit" => flags.of_the_hop = true,
            "x-forwarded-proto" => flags.forwarded_proto = true,
            "x-request-id" => flags.request_id = true,
            "x-envoy-external-address" => flags.external = true,
            "x-forwarded-client-cert" => flags.client_cert = true,
            name if is_hop_by_hop(name.as_bytes()) => flags.of_the_hop = true,
            name if name == forwarded::X_FORWARDED_FOR.as_str() => flags.forwarded_for = true,
            name => {
                flags.overrides |= overrides::is_override(name);
                flags.imitations |= identity::may_imitate(name);
            }
        }
    }
    if !names_one_host(head, hosts) {
        return Err(Unacceptable::Malformed);
    }
    is_chunked(head, codings)?;
    Ok(flags)
}

/// The values of a field that may be given once.
#[derive(Clone, Copy, Debug)]
pub(super) enum Once<'a> {
    None,
    Value(&'a HeaderValue),
    Several,
}

impl<'a> Once<'a> {
    fn add(&mut self, value: &'a HeaderValue) {
        *self = match self {
            Self::None => Self::Value(value),
            Self::Value(_) | Self::Several => Self::Several,
        };
    }
}
